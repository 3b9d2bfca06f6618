"""The playground's conversations: kept in the browser, in two tabs, in files; long ones; files that become text."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.page.conftest import Fake
from tests.page.playground import Held, answers, chat_engine, is_done, opened, send, setting
from tests.support.server_app import TOKENIZER

FULL = """() => {
    IDBObjectStore.prototype.put = () => { throw new DOMException("no room", "QuotaExceededError"); };
}"""


def rows(page: Page) -> Any:
    return page.locator(".chats .pick")


def file_of(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "text/plain", "buffer": content}


def exported(*conversations: dict[str, Any]) -> FilePayload:
    file = {"format": "jaxgen-conversations", "version": 1, "conversations": list(conversations)}
    return file_of("chats.json", json.dumps(file).encode())


def conversation(count: int, **fields: Any) -> dict[str, Any]:
    """Messages 1 to ``count`` of the two in turn."""
    messages = [
        {"role": "user" if i % 2 == 0 else "assistant", "content": f"Message **{i + 1}** with some text."}
        for i in range(count)
    ]
    return {"title": "Long", "mode": "chat", "messages": messages, **fields}


def take_file(page: Page, file: FilePayload) -> None:
    page.get_by_label("File to import").set_input_files(file)


def test_conversations_outlive_a_reload(page: Page, fake: Fake) -> None:
    opened(page, fake(chat_engine()).url)
    setting(page, "seed").fill("9")
    send(page, "First question")
    is_done(page)
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.get_by_role("article")).to_have_count(0)
    expect(setting(page, "seed")).to_have_value("9")
    send(page, "Second question")
    is_done(page)
    expect(rows(page)).to_have_text(["Second question", "First question"])
    page.reload()
    expect(page.get_by_role("article", name="You")).to_contain_text("Second question")
    rows(page).nth(1).click()
    expect(page.get_by_role("article", name="You")).to_contain_text("First question")
    expect(answers(page)).to_contain_text("Hello there.")


def test_rename_search_and_delete(page: Page, fake: Fake) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    opened(page, fake(chat_engine()).url)
    for text in ("One", "Two"):
        page.get_by_role("button", name="New", exact=True).click()
        send(page, text)
        is_done(page)
        expect(rows(page).first).to_have_text(text)
    page.get_by_role("button", name="Rename One").click()
    page.get_by_label("New title").fill("Uno")
    page.get_by_label("New title").press("Enter")
    expect(rows(page)).to_have_text(["Uno", "Two"])
    page.get_by_label("Search titles").fill("tw")
    expect(rows(page)).to_have_text(["Two"])
    page.get_by_label("Search titles").fill("")
    page.get_by_role("button", name="Delete Two").click()
    expect(rows(page)).to_have_text(["Uno"])
    expect(page.get_by_role("article")).to_have_count(0)


def test_an_answer_goes_on_while_another_conversation_is_shown(page: Page, fake: Fake) -> None:
    held = Held(5)
    opened(page, fake(chat_engine(pace=held)).url)
    send(page, "First")
    expect(answers(page)).to_contain_text("Hello")
    page.get_by_role("button", name="New", exact=True).click()
    held.release()
    send(page, "Second")
    is_done(page)
    rows(page).get_by_text("First").click()
    expect(is_done(page)).to_contain_text("Hello there.")


def test_two_tabs_see_each_other(page: Page, fake: Fake) -> None:
    url = fake(chat_engine()).url
    other = page.context.new_page()
    opened(other, url)
    opened(page, url)
    send(page, "From the first tab")
    is_done(page)
    rows(other).get_by_text("From the first tab").click()
    expect(answers(other)).to_contain_text("Hello there.")
    send(other, "From the second tab")
    is_done(other, 2)
    expect(page.get_by_role("article")).to_have_count(4)
    expect(page.get_by_role("article").nth(2)).to_contain_text("From the second tab")


def test_two_tabs_that_write_at_once_lose_nothing(page: Page, fake: Fake) -> None:
    held = Held(5)
    url = fake(chat_engine(pace=held)).url
    opened(page, url)
    send(page, "Begin")
    expect(answers(page)).to_contain_text("Hello")
    other = page.context.new_page()
    opened(other, url)
    rows(other).get_by_text("Begin").click()
    expect(other.get_by_role("article")).to_have_count(2)
    send(other, "Meanwhile")
    expect(other.get_by_role("article")).to_have_count(4)
    held.release()
    expect(page.get_by_role("alert")).to_contain_text("kept as a copy")
    expect(rows(page)).to_have_count(2)
    expect(rows(page).get_by_text("Begin (copy)")).to_be_visible()
    is_done(other, 2)
    other.reload()
    rows(other).get_by_text("Begin", exact=True).click()
    expect(other.get_by_role("article")).to_have_count(4)
    rows(other).get_by_text("Begin (copy)").click()
    expect(other.get_by_role("article")).to_have_count(2)
    expect(answers(other)).to_contain_text("Hello there.")


def test_a_full_storage_is_said_and_the_conversation_goes_on(page: Page, fake: Fake) -> None:
    opened(page, fake(chat_engine()).url)
    page.evaluate(FULL)
    send(page, "Hi")
    expect(is_done(page)).to_contain_text("Hello there.")
    words = "The browser's storage is full. Export conversations that you need, and delete some."
    expect(page.get_by_role("alert")).to_contain_text(f"This conversation is not kept: {words}")
    send(page, "And on")
    is_done(page, 2)


def test_export_and_import(page: Page, fake: Fake, tmp_path: Path) -> None:
    opened(page, fake(chat_engine()).url)
    setting(page, "system").fill("Be brief.")
    page.get_by_label("Text files to add").set_input_files(file_of("a.txt", b"kept"))
    send(page, "Keep this")
    is_done(page).get_by_role("button", name="Regenerate").click()
    is_done(page)
    expect(rows(page)).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    file = tmp_path / "exported.json"
    download.value.save_as(file)
    (found,) = json.loads(file.read_text())["conversations"]
    assert (found["title"], found["system"]) == ("Keep this", "Be brief.")
    assert [message["content"] for message in found["messages"]] == ["Keep this", "Hello there."]
    page.get_by_label("File to import").set_input_files(file)
    expect(rows(page)).to_have_text(["Keep this", "Keep this"])
    expect(setting(page, "system")).to_have_value("Be brief.")
    expect(answers(page)).to_contain_text("Hello there.")
    expect(answers(page).get_by_role("group", name="Versions")).to_contain_text("2/2")
    expect(page.locator(".chip summary")).to_have_text("a.txt 4 B")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"conversations": []}, 'format must be "jaxgen-conversations"'),
    ({"conversations": 3}, "conversations must be a list"),
    ({"version": 2}, "version must be 1"),
    ({"conversations": [{"title": 3}]}, "conversations[0].title must be a text"),
    ({"conversations": [conversation(1, mode="talk")]}, "conversations[0].mode must be chat or completion"),
    (
        {"conversations": [conversation(2), conversation(0, messages=[{"role": "robot"}])]},
        "conversations[1].messages[0].role must be one of user, assistant, tool",
    ),
    (
        {"conversations": [conversation(0, messages=[{"role": "user", "content": 1}])]},
        "conversations[0].messages[0].content must be a text",
    ),
    (
        {"conversations": [conversation(0, messages=[{"role": "user", "content": "", "files": [{"name": "a"}]}])]},
        "conversations[0].messages[0].files[0] must be a file with the texts name and text",
    ),
    (
        {"conversations": [conversation(0, messages=[{"role": "user", "content": "", "branches": {"at": 1}}])]},
        "conversations[0].messages[0].branches must be an object with a list tails and at, an index of it",
    ),
]


def test_a_bad_file_is_refused_whole_with_one_error(page: Page, fake: Fake) -> None:
    opened(page, fake(chat_engine()).url)
    for number, (fields, words) in enumerate(BAD):
        head: dict[str, Any] = {} if number == 0 else {"format": "jaxgen-conversations", "version": 1}
        take_file(page, file_of("bad.json", json.dumps({**head, **fields}).encode()))
        expect(page.get_by_role("alert")).to_contain_text(f"bad.json was not imported: {words}")
    take_file(page, file_of("bad.json", b"no"))
    expect(page.get_by_role("alert")).to_contain_text("bad.json was not imported: this is not JSON.")
    expect(rows(page)).to_have_count(0)


def test_a_chat_of_2000_messages(page: Page, fake: Fake) -> None:
    engine = chat_engine()
    draft = opened(page, fake(engine).url)
    take_file(page, exported(conversation(2000)))
    expect(page.get_by_role("article")).to_have_count(40)
    expect(page.get_by_role("article").last).to_contain_text("Message 2000 with some text.")
    draft.press_sequentially("typed")
    expect(draft).to_have_value("typed")
    draft.press("Enter")
    expect(page.get_by_role("article").last).to_contain_text("Hello there.")
    prompt = TOKENIZER.decode(engine.requests[0].prompt)
    assert prompt.startswith("<user>Message **1** with some text.</>")
    assert prompt.endswith("<user>typed</><answer>")
    page.get_by_role("button", name="Show 200 of 1962 earlier messages").click()
    expect(page.get_by_role("article")).to_have_count(240)
    expect(page.get_by_role("button", name="Show 200 of 1762 earlier messages")).to_be_visible()


def test_files_are_chips_and_become_text(page: Page, fake: Fake) -> None:
    engine = chat_engine()
    draft = opened(page, fake(engine).url)
    page.get_by_label("Text files to add").set_input_files(file_of("a.md", b"```js\nx\n```"))
    page.evaluate("""() => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(["dropped"], "b.txt"));
        const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
        document.querySelector(".talk").dispatchEvent(drop);
    }""")
    page.get_by_label("Text files to add").set_input_files(file_of("c.txt", b"c"))
    chips = page.locator(".composer .chip")
    expect(chips.locator("summary")).to_have_text(["a.md 11 B", "b.txt 7 B", "c.txt 1 B"])
    page.get_by_role("button", name="Remove c.txt").press("Enter")
    expect(chips).to_have_count(2)
    expect(draft).to_have_value("")
    expect(draft).to_be_focused()
    send(page, "Read them.")
    is_done(page)
    expect(chips).to_have_count(0)
    files = "a.md\n````\n```js\nx\n```\n````\nb.txt\n```\ndropped\n```\n"
    assert TOKENIZER.decode(engine.requests[0].prompt) == f"<user>{files}Read them.</><answer>"
    mine = page.get_by_role("article", name="You")
    expect(mine.locator(".raw")).to_have_text("Read them.")
    chip = mine.locator(".chip summary").nth(1)
    expect(mine.get_by_text("dropped")).not_to_be_visible()
    chip.press("Enter")
    expect(mine.get_by_text("dropped")).to_be_visible()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "x.png is not text in UTF-8"),
        (b"a\0b", "x.png is not text in UTF-8"),
        (b"a" * (2**20 + 1), "x.png has 1048577 bytes; a file may have 1048576."),
    ],
    ids=["invalid", "null", "long"],
)
def test_what_is_no_text_is_refused(page: Page, fake: Fake, content: bytes, words: str) -> None:
    draft = opened(page, fake(chat_engine()).url)
    page.get_by_label("Text files to add").set_input_files(file_of("x.png", content))
    expect(page.get_by_role("alert")).to_contain_text(words)
    expect(draft).to_have_value("")
