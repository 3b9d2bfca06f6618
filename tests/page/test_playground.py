"""The playground: sending, stopping, parameters, and what goes wrong on the way."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from jaxgen.core.errors import EngineDeadError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingDefaults
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.config import ServerConfig
from tests.page.conftest import Fake
from tests.page.playground import CHAT, Held, answers, body_of, chat_engine, is_done, opened, send, setting
from tests.support.browser import Troubles
from tests.support.fakes import MODEL
from tests.support.proxy import proxy
from tests.support.server_app import TOKENIZER, fake_engine


def sent_by(page: Page, text: str) -> dict[str, Any]:
    """The body of the request that sends the text."""
    with page.expect_request("**/v1/**completions") as request:
        send(page, text)
    return body_of(request)


def test_nothing_is_sent_but_what_the_fields_show(page: Page, fake: Fake) -> None:
    opened(page, fake(chat_engine()).url)
    always = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}}
    messages = [{"role": "user", "content": "Hi"}]
    shown = {"temperature": 1, "top_p": 1, "max_completion_tokens": 512}
    assert sent_by(page, "Hi") == {**always, "messages": messages, **shown}
    expect(is_done(page)).to_contain_text("Hello there.")
    for name in ("temperature", "top_p", "max_tokens"):
        setting(page, name).fill("")
    page.get_by_role("button", name="New", exact=True).click()
    assert sent_by(page, "Hi") == {**always, "messages": messages}


def test_the_form_begins_with_the_models_defaults(page: Page, fake: Fake) -> None:
    defaults = SamplingDefaults(temperature=0.2, top_k=20, repetition_penalty=1.0)
    opened(page, fake(fake_engine(model=ModelInfo(MODEL, 400, 400, chat=CHAT, defaults=defaults))).url)
    names = ("temperature", "top_p", "max_tokens", "top_k", "min_p", "repetition_penalty")
    assert [setting(page, name).input_value() for name in names] == ["0.2", "1", "100", "20", "", ""]
    setting(page, "top_k").fill("")
    setting(page, "seed").fill("5")
    page.get_by_role("button", name="Reset to defaults").click()
    expect(setting(page, "top_k")).to_have_value("20")
    expect(setting(page, "seed")).to_have_value("")


def test_rare_parameters_are_folded(page: Page, fake: Fake) -> None:
    page.goto(fake(chat_engine()).url)
    folds = page.locator("#parameters details")
    expect(folds).to_have_count(4)
    expect(setting(page, "temperature")).to_be_visible()
    expect(setting(page, "top_k")).not_to_be_visible()
    setting(page, "max_tokens").press("Tab")
    page.keyboard.press("Enter")
    setting(page, "seed").fill("x")
    page.keyboard.press("Escape")
    expect(folds.first.locator("summary")).to_have_text("More sampling 1 set")
    folds.first.locator("summary").click()
    expect(setting(page, "seed")).not_to_be_visible()
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("seed must be a whole number, not x.")
    expect(setting(page, "seed")).to_be_visible()
    setting(page, "seed").fill("7")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(setting(page, "seed")).to_be_visible()


def test_parameters_come_from_the_document_and_are_sent(page: Page, fake: Fake) -> None:
    engine = chat_engine()
    opened(page, fake(engine).url)
    expect(page.locator("#about-temperature")).to_contain_text("0 to 2")
    expect(page.locator("#about-top_p")).to_contain_text("0 to 1")
    expect(setting(page, "min_p")).to_have_attribute("placeholder", "0")
    values = {
        "temperature": "0.5",
        "top_k": "5",
        "max_tokens": "7",
        "seed": "11",
        "stop": "END\\n",
        "system": "Be brief.",
    }
    for name, value in values.items():
        setting(page, name).fill(value)
    body = sent_by(page, "Hi")
    named = ("temperature", "top_k", "max_completion_tokens", "seed", "stop", "return_token_ids")
    assert [body[name] for name in named] == [0.5, 5, 7, 11, ["END\n"], True]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    expect(is_done(page)).to_contain_text("stopped at max tokens")
    assert engine.requests[0].params.temperature == 0.5
    assert engine.requests[0].params.seed == 11


def test_a_value_out_of_range_is_named_and_nothing_is_sent(page: Page, fake: Fake) -> None:
    engine = chat_engine()
    draft = opened(page, fake(engine).url)
    setting(page, "temperature").fill("3")
    expect(setting(page, "temperature")).to_have_attribute("aria-invalid", "true")
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("temperature must be 0 to 2, not 3.")
    expect(draft).to_have_value("Hi")
    assert engine.requests == []
    setting(page, "temperature").fill("2")
    expect(page.get_by_role("alert")).to_have_count(0)
    send(page, "Hi")
    is_done(page)


@pytest.mark.parametrize("field", ["tools", "structureText"])
def test_text_that_must_be_json_is_named(page: Page, fake: Fake, field: str) -> None:
    opened(page, fake(chat_engine()).url)
    setting(page, "structure").select_option("json_schema")
    setting(page, "structureText").fill("{}")
    setting(page, field).fill("{")
    send(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("must be JSON")
    expect(setting(page, field)).to_have_attribute("aria-invalid", "true")


STRUCTURES = [
    ("json_schema", '{"type": "object"}', "response_format"),
    ("json_object", None, "response_format"),
    ("regex", "[a-z]+", "structured_outputs"),
    ("choice", "yes\nno", "structured_outputs"),
    ("grammar", 'start: "a"', "structured_outputs"),
]


def test_structured_outputs(page: Page, fake: Fake) -> None:
    opened(page, fake(chat_engine()).url)
    found = {}
    for number, (kind, text, name) in enumerate(STRUCTURES, 1):
        setting(page, "structure").select_option(kind)
        if text is not None:
            setting(page, "structureText").fill(text)
        found[kind] = sent_by(page, kind)[name]
        is_done(page, number)
    assert found["json_schema"]["json_schema"]["schema"] == {"type": "object"}
    assert found["json_object"] == {"type": "json_object"}
    assert found["regex"] == {"regex": "[a-z]+"}
    assert found["choice"] == {"choice": ["yes", "no"]}
    assert found["grammar"] == {"grammar": 'start: "a"'}


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
    with proxy(fake(chat_engine(pace=held), ServerConfig(root_path="/llm")).url, strip="/llm") as front:
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


def test_service_classes_can_be_named(page: Page, fake: Fake) -> None:
    config = ServerConfig(service_classes=(ServiceClass(name="quick", first_token_seconds=1.0),))
    opened(page, fake(chat_engine(), config).url)
    setting(page, "service_tier").select_option("quick")
    assert sent_by(page, "Hi")["service_tier"] == "quick"
    is_done(page)


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
