"""The playground: sending, stopping, and what goes wrong on the way."""

from typing import Any

from playwright.sync_api import Page, expect

from jaxgen.core.errors import EngineDeadError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import Request
from jaxgen.server.config import Proxy, ServerConfig
from tests.page.conftest import Fake
from tests.page.playground import CHAT, Held, answers, chat_engine, is_done, opened, send, sent_by, setting
from tests.support.browser import Troubles
from tests.support.fakes import MODEL
from tests.support.proxy import proxy
from tests.support.server_app import TOKENIZER, fake_engine


def test_escape_stops_an_answer_and_keeps_what_came(page: Page, fake: Fake) -> None:
    engine = chat_engine(pace=Held(5))
    draft = opened(page, fake(engine).url)
    send(page, "Hi")
    expect(answers(page)).to_contain_text("Hello")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(is_done(page)).to_contain_text("stopped")
    expect(answers(page)).to_contain_text("Hello")
    expect(draft).to_be_focused()
    assert engine.idle.wait(120)
    assert len(engine.aborted) == 1


def test_keys(page: Page, fake: Fake) -> None:
    engine = chat_engine()
    draft = opened(page, fake(engine).url)
    expect(draft).to_be_focused()
    page.keyboard.type("One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Two")
    expect(draft).to_have_value("One\nTwo")
    page.keyboard.press("Enter")
    is_done(page)
    expect(page.get_by_role("article", name="You")).to_contain_text("One\nTwo")
    assert "One\nTwo" in TOKENIZER.decode(engine.requests[0].prompt)


def test_the_end_of_an_answer_is_said_once(page: Page, fake: Fake) -> None:
    held = Held(5)
    opened(page, fake(chat_engine(pace=held)).url)
    send(page, "Hi")
    said = page.locator(".play [role=status]")
    expect(answers(page)).to_contain_text("Hello")
    expect(said).to_have_text("Answering.")
    held.release()
    expect(said).to_have_text("Answer: Hello there.")


def test_errors_are_in_the_servers_own_words(page: Page, fake: Fake, troubles: Troubles) -> None:
    troubles.allow("status of 400")
    opened(page, fake(fake_engine(model=ModelInfo(MODEL, 64, 400, chat=CHAT))).url)
    send(page, "word " * 100)
    expect(is_done(page)).to_contain_text("This model's maximum context length is 64 tokens.")
    expect(page.get_by_role("article", name="You")).to_contain_text("word word")


def test_a_dropped_connection_keeps_the_text(page: Page, fake: Fake, troubles: Troubles) -> None:
    troubles.allow("ERR_|status of")
    held = Held(5)
    server = fake(chat_engine(pace=held))
    opened(page, server.url)
    send(page, "Hi")
    expect(answers(page)).to_contain_text("Hello")
    server.stop()
    expect(is_done(page)).to_contain_text("cut off")
    expect(answers(page)).to_contain_text("What had come is kept.")
    expect(answers(page)).to_contain_text("Hello")
    held.release()
    server.start()
    answers(page).get_by_role("button", name="Regenerate").click()
    expect(answers(page)).to_contain_text("Hello there.")
    expect(is_done(page)).not_to_contain_text("cut off")


def test_a_dropped_connection_of_a_server_that_goes_on(page: Page, fake: Fake, troubles: Troubles) -> None:
    troubles.allow("ERR_")
    held = Held(5)
    with proxy(fake(chat_engine(pace=held), ServerConfig(proxy=Proxy(root_path="/llm"))).url, strip="/llm") as front:
        opened(page, f"{front.url}/llm/")
        send(page, "Hi")
        expect(answers(page)).to_contain_text("Hello")
        front.cut()
        expect(is_done(page)).to_contain_text("What had come is kept.")
        held.release()
        answers(page).get_by_role("button", name="Regenerate").click()
        expect(answers(page)).to_contain_text("Hello there.")


def test_an_engine_that_fails_is_said_beside_what_had_come(page: Page, fake: Fake) -> None:
    held = Held(5)

    async def fails(request: Request, index: int) -> None:
        await held(request, index)
        if index == 5:
            raise EngineDeadError("the device was lost")

    opened(page, fake(chat_engine(pace=fails)).url)
    send(page, "Hi")
    expect(answers(page)).to_contain_text("Hello")
    held.release()
    expect(is_done(page)).to_contain_text("The engine is not running.")
    expect(answers(page)).to_contain_text("failed")
    expect(answers(page)).to_contain_text("Hello")


def test_a_server_that_restarts_is_asked_again_only_when_the_user_says(
    page: Page, fake: Fake, troubles: Troubles
) -> None:
    troubles.allow("ERR_")
    engine = chat_engine()
    server = fake(engine)
    opened(page, server.url)
    server.stop()
    send(page, "Hi")
    expect(is_done(page)).to_contain_text("The server could not be reached. Nothing was answered.")
    server.start()
    assert engine.requests == []
    answers(page).get_by_role("button", name="Regenerate").click()
    expect(is_done(page)).to_contain_text("Hello there.")
    assert len(engine.requests) == 1


def test_a_model_without_a_template_completes(page: Page, fake: Fake) -> None:
    engine = fake_engine()
    draft = opened(page, fake(engine).url)
    expect(page.locator("#mode")).to_have_value("completion")
    expect(page.locator("#mode option[value=chat]")).to_be_disabled()
    setting(page, "max_tokens").fill("4")
    assert sent_by(page, "Once upon")["prompt"] == "Once upon"
    is_done(page).get_by_role("button", name="Continue").click()
    expect(draft).to_have_value(f"Once upon{TOKENIZER.decode(reply_to(engine))}")
    assert TOKENIZER.decode(engine.requests[0].prompt) == "Once upon"


def reply_to(engine: Any) -> list[int]:
    start = engine.requests[0].prompt[-1]
    return [(start + i) % 256 + 2 for i in range(4)]


def test_the_demo_model_is_called_so(page: Page, fake: Fake) -> None:
    opened(page, fake(chat_engine(embedded=True)).url)
    expect(page.locator(".nothing")).to_contain_text("Demo model: answers make no sense. Try --model smollm2-135m")
    opened(page, fake(chat_engine()).url)
    expect(page.locator(".nothing")).to_contain_text(MODEL)
    expect(page.locator(".nothing")).not_to_contain_text("Demo")


def test_the_embedded_model_answers(page: Page, model: str) -> None:
    opened(page, model)
    expect(page.locator(".nothing")).to_contain_text("Demo model")
    setting(page, "max_tokens").fill("8")
    setting(page, "seed").fill("5")
    setting(page, "logprobs").fill("2")
    send(page, "Hi")
    found = is_done(page)
    expect(found.get_by_role("option")).to_have_count(8)
    found.get_by_role("button", name="Check determinism").click()
    expect(found).to_contain_text("Same bits: 8 tokens and 24 log-probabilities are equal.")
