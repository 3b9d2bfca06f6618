"""The playground's answers: tokens and their alternatives, the same bits again, code, tools."""

import json
import os
import re
import subprocess
import sys
from itertools import chain, repeat

import pytest
from playwright.sync_api import Locator, Page, expect

from jaxgen.core.request import Request
from jaxgen.server.config import Access, ServerConfig
from tests.page.conftest import Fake
from tests.page.playground import answers, body_of, chat_engine, is_done, opened, send, setting
from tests.support.server_app import TOKENIZER, byte_by_byte
from tests.support.tool_engines import marked_tokenizer, tokens_of, tool_engine


def test_tokens_show_alternatives_on_hover_and_on_focus(page: Page, fake: Fake) -> None:
    opened(page, fake(chat_engine("ab\nc")).url)
    setting(page, "logprobs").fill("2")
    send(page, "Hi")
    found = is_done(page)
    tokens = found.get_by_role("option")
    expect(tokens).to_have_count(5)
    first = byte_by_byte("a")[0]
    chance = {7: 42, 6: 47, 5: 54, 4: 61, 3: 69, 2: 78, 1: 88}[first % 7 + 1]
    expect(tokens.nth(0)).to_have_attribute("aria-label", f"a, {chance} %")
    expect(tokens.nth(2)).to_have_attribute("aria-label", re.compile(r"\\n, \d+ %"))
    tokens.nth(1).hover()
    expect(found.locator(".alternatives")).to_contain_text("Token 2: b")
    expect(found.locator(".alternatives li")).to_have_count(2)
    tokens.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(2)).to_be_focused()
    expect(found.locator(".alternatives")).to_contain_text(r"Token 3: \n")
    page.keyboard.press("End")
    expect(tokens.nth(4)).to_be_focused()
    thickness = tokens.nth(0).evaluate("node => getComputedStyle(node).borderBottomWidth")
    assert thickness != "0px", "colour alone would not do"


def test_again_says_same_bits(page: Page, fake: Fake) -> None:
    engine = chat_engine()
    opened(page, fake(engine).url)
    setting(page, "seed").fill("7")
    send(page, "Hi")
    found = is_done(page)
    setting(page, "seed").fill("8")
    found.get_by_role("button", name="Check determinism").click()
    expect(found).to_contain_text("Same bits: 13 tokens are equal.")
    assert [request.params.seed for request in engine.requests] == [7, 7]
    assert engine.requests[0].prompt == engine.requests[1].prompt


def test_again_shows_where_answers_differ(page: Page, fake: Fake) -> None:
    texts = chain(["Hello there.", "Hello you."], repeat("Hello"))
    engine = chat_engine(reply=lambda request: byte_by_byte(next(texts)))
    opened(page, fake(engine).url)
    send(page, "Hi")
    found = is_done(page)
    found.get_by_role("button", name="Check determinism").click()
    expect(found).to_contain_text('The answers differ from character 7: "there." and "you.". No seed was sent')
    expect(found).to_contain_text("Hello there.")


def test_answers_link_to_their_timeline(page: Page, fake: Fake) -> None:
    engine = chat_engine()
    opened(page, fake(engine).url)
    setting(page, "return_latency").check()
    send(page, "Hi")
    found = is_done(page)
    name = engine.requests[0].request_id.removesuffix("-0-0")
    expect(found.get_by_role("link", name="Timeline")).to_have_attribute("href", f"#live/{name}")
    expect(found.locator(".latency")).to_contain_text("queue0.25 s")


def code_of(page: Page, found: Locator, way: str) -> str:
    if not found.locator("details pre").is_visible():
        found.locator("summary").click()
    found.get_by_role("button", name=way, exact=True).click()
    return found.locator("details pre").inner_text()


@pytest.mark.parametrize("key", [None, "a-secret"])
def test_code_does_what_was_sent_and_has_no_key(page: Page, fake: Fake, key: str | None) -> None:
    text = 'It\'s "quoted" \\ $HOME 😀'
    keys = () if key is None else (key,)
    engine = chat_engine("Hello it's.")
    server = fake(engine, ServerConfig(access=Access(api_keys=keys)))
    if key is not None:
        page.add_init_script(f"sessionStorage.setItem('jaxgen.key', '{key}')")
    opened(page, server.url)
    for name, value in {"seed": "7", "top_k": "3", "stop": "END"}.items():
        setting(page, name).fill(value)
    send(page, text)
    found = is_done(page)
    codes = {way: code_of(page, found, way) for way in ("curl", "Python")}
    environment = {**os.environ} | ({} if key is None else {"OPENAI_API_KEY": key})
    commands = {"curl": ["bash", "-c", codes["curl"]], "Python": [sys.executable, "-c", codes["Python"]]}
    for way, command in commands.items():
        assert "a-secret" not in codes[way]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert ("it's" in ended.stdout) if way == "Python" else ("[DONE]" in ended.stdout), ended
    assert len(engine.requests) == 3
    assert len({tuple(request.prompt) for request in engine.requests}) == 1
    assert len({str(request.params) for request in engine.requests}) == 1


def test_code_is_copied(page: Page, fake: Fake) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(page, fake(chat_engine()).url)
    send(page, "Hi")
    found = is_done(page)
    shown = code_of(page, found, "curl")
    found.get_by_role("button", name="Copy code").click()
    expect(found.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == shown


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'


def test_tools_are_called_and_their_results_go_on(page: Page, fake: Fake) -> None:
    tokenizer = marked_tokenizer(True)

    def reply(request: Request) -> list[int]:
        answered = "14 degrees" in tokenizer.decode(request.prompt)
        return tokens_of("It is mild." if answered else CALL, "hermes", tokenizer)

    opened(page, fake(tool_engine("hermes", "", reply=reply)).url)
    setting(page, "tools").fill(json.dumps([TOOL]))
    send(page, "Weather?")
    expect(answers(page)).to_contain_text('{"city": "Bern"}')
    page.get_by_label("Result of weather").fill("14 degrees")
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_role("button", name="Send results").click()
    user, call, result = body_of(request)["messages"]
    assert (user["role"], call["role"], result["role"]) == ("user", "assistant", "tool")
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    expect(is_done(page, 2)).to_contain_text("It is mild.")
    expect(page.locator("#draft")).to_be_visible()


def test_every_version_is_kept(page: Page, fake: Fake) -> None:
    texts = chain(["First.", "Second.", "After second.", "Third."], repeat("More."))
    opened(page, fake(chat_engine(reply=lambda request: byte_by_byte(next(texts)))).url)
    send(page, "One")
    is_done(page).get_by_role("button", name="Regenerate").click()
    expect(is_done(page)).to_contain_text("Second.")
    send(page, "Go on")
    expect(is_done(page, 2)).to_contain_text("After second.")
    versions = answers(page).first.get_by_role("group", name="Versions")
    expect(versions.get_by_role("status")).to_have_text("2/2")
    page.set_viewport_size({"width": 1280, "height": 300})
    versions.get_by_role("button", name="Previous version").press("Enter")
    expect(answers(page)).to_have_count(1)
    expect(answers(page)).to_contain_text("First.")
    expect(answers(page).get_by_role("button", name="Check determinism")).to_have_count(0)
    versions.get_by_role("button", name="Next version").click()
    expect(answers(page).nth(1)).to_contain_text("After second.")
    page.evaluate("import('./play/store.js').then(({ store }) => store.save())")  # it is shown again then
    page.evaluate("new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    expect(versions).to_be_in_viewport()
    expect(answers(page).nth(1).get_by_role("button", name="Check determinism")).to_be_visible()
    is_done(page).get_by_role("button", name="Regenerate").click()
    expect(is_done(page)).to_contain_text("Third.")
    expect(versions.get_by_role("status")).to_have_text("3/3")
    answers(page).get_by_role("button", name="Delete").click()
    expect(versions.get_by_role("status")).to_have_text("2/2")
    expect(answers(page).first).to_contain_text("Second.")


def test_regenerate_edit_and_delete(page: Page, fake: Fake) -> None:
    engine = chat_engine()
    opened(page, fake(engine).url)
    send(page, "One")
    is_done(page)
    send(page, "Two")
    is_done(page, 2).get_by_role("button", name="Regenerate").click()
    is_done(page, 2)
    assert engine.requests[1].prompt == engine.requests[2].prompt
    mine = page.get_by_role("article", name="You")
    mine.nth(0).get_by_role("button", name="Edit").click()
    page.get_by_label("Edited text").fill("Three")
    page.get_by_role("button", name="Send from here").click()
    expect(page.get_by_role("article")).to_have_count(2)
    is_done(page)
    assert TOKENIZER.decode(engine.requests[3].prompt) == "<user>Three</><answer>"
    mine.get_by_role("button", name="Previous version").click()
    expect(page.get_by_role("article")).to_have_count(4)
    mine.first.get_by_role("button", name="Next version").click()
    expect(page.get_by_role("article")).to_have_count(2)
    answers(page).get_by_role("button", name="Edit").click()
    page.get_by_label("Edited text").fill("My own")
    page.get_by_role("button", name="Keep").click()
    expect(answers(page)).to_contain_text("My own")
    send(page, "Four")
    is_done(page, 2)
    assert "<assistant>My own</>" in TOKENIZER.decode(engine.requests[4].prompt)
    page.get_by_role("article").nth(1).get_by_role("button", name="Delete").click()
    expect(page.get_by_role("article")).to_have_count(3)
    expect(page.get_by_text("My own")).to_have_count(0)
