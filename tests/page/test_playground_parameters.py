"""The playground's parameters: what the form shows, what is sent, and what is wrong."""

import pytest
from playwright.sync_api import Page, Route, expect

from jaxgen.core.model_info import ModelInfo
from jaxgen.core.sampling_params import SamplingDefaults
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.config import ServerConfig
from tests.page.conftest import Fake
from tests.page.playground import CHAT, chat_engine, is_done, opened, send, sent_by, setting
from tests.support.fakes import MODEL
from tests.support.server_app import fake_engine


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


def test_a_number_that_only_the_server_knows_is_in_the_form(page: Page, fake: Fake) -> None:
    def with_another(route: Route) -> None:
        response = route.fetch()
        document = response.json()
        share = {"type": "number", "minimum": 0, "maximum": 1, "description": "A parameter of the future."}
        document["components"]["schemas"]["ChatRequest"]["properties"]["least_share"] = share
        route.fulfill(response=response, json=document)

    page.route("**/openapi.json", with_another)
    opened(page, fake(chat_engine()).url)
    expect(setting(page, "least_share")).to_be_visible()


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


def test_service_classes_can_be_named(page: Page, fake: Fake) -> None:
    config = ServerConfig(service_classes=(ServiceClass(name="quick", first_token_seconds=1.0),))
    opened(page, fake(chat_engine(), config).url)
    setting(page, "service_tier").select_option("quick")
    assert sent_by(page, "Hi")["service_tier"] == "quick"
    is_done(page)
