"""``reasoning_effort`` goes to templates that have such an argument, and is refused by name elsewhere."""

from typing import Any

import pytest

from jaxgen.core.model_info import ChatFormat, ModelInfo
from tests.support.fakes import MODEL, FakeEngine
from tests.support.known_templates import KNOWN
from tests.support.server_app import client_of, error_of, fake_engine
from tests.support.tool_engines import prompt_of

USER = {"role": "user", "content": "Hi"}
BRANCHES = (
    "{{ messages[-1].content }}{% if reasoning_effort is defined and reasoning_effort == 'low' %} /short{% endif %}"
)


def engine_of(chat: ChatFormat) -> FakeEngine:
    return fake_engine(model=ModelInfo(MODEL, 20_000, 400, chat=chat))


def ask(engine: FakeEngine, path: str, status: int = 200, **fields: Any) -> Any:
    asked = {"messages": [USER]} if "chat" in path or path == "/tokenize" else {"input": "Hi"}
    with client_of(engine) as client:
        answer = client.post(path, json={"model": MODEL, **asked, **fields})
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("effort", ["minimal", "low", "high", "xhigh"])
def test_a_template_that_names_it_is_told(effort: str) -> None:
    engine = engine_of(KNOWN["gpt-oss"])
    ask(engine, "/v1/chat/completions", reasoning_effort=effort)
    assert f"Reasoning: {effort}<" in prompt_of(engine)
    ask(engine, "/v1/responses", reasoning={"effort": effort})
    assert f"Reasoning: {effort}<" in prompt_of(engine)


@pytest.mark.parametrize("effort", [None, "none"])
def test_without_any_it_is_the_templates_own(effort: str | None) -> None:
    engine = engine_of(KNOWN["gpt-oss"])
    ask(engine, "/v1/chat/completions", reasoning_effort=effort)
    assert "Reasoning: medium<" in prompt_of(engine)


def test_a_template_may_branch_on_it() -> None:
    engine = engine_of(ChatFormat(BRANCHES, {}))
    ask(engine, "/v1/chat/completions", reasoning_effort="low")
    assert prompt_of(engine) == "Hi /short"
    ask(engine, "/v1/chat/completions", reasoning_effort="high")
    assert prompt_of(engine) == "Hi"


def test_the_templates_own_arguments_win() -> None:
    engine = engine_of(KNOWN["gpt-oss"])
    ask(engine, "/v1/chat/completions", reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
    assert "Reasoning: high<" in prompt_of(engine)


def test_a_count_of_tokens_is_that_of_the_prompt() -> None:
    engine = engine_of(KNOWN["gpt-oss"])
    counts = [ask(engine, "/tokenize", reasoning_effort=effort)["count"] for effort in ("low", "medium")]
    usages = [
        ask(engine, "/v1/responses/input_tokens", reasoning={"effort": effort})["input_tokens"]
        for effort in ("low", "medium")
    ]
    assert counts[0] != counts[1]
    assert counts == usages


@pytest.mark.parametrize("name", ["qwen-3", "llama-3.1"])
def test_other_templates_refuse_it_by_name(name: str) -> None:
    engine = engine_of(KNOWN[name])
    error = error_of(ask(engine, "/v1/chat/completions", 400, reasoning_effort="low"))
    assert (error["param"], error["code"]) == ("reasoning_effort", "unsupported_parameter")
    error = error_of(ask(engine, "/v1/responses", 400, reasoning={"effort": "low"}))
    assert error["param"] == "reasoning.effort"
    assert error["message"].startswith("reasoning.effort: this model's chat template has no levels of effort")
    assert "model_reasoning_effort" in error["message"]
    ask(engine, "/v1/chat/completions", reasoning_effort="none")
    assert error_of(ask(engine, "/v1/chat/completions", 400, reasoning_effort=3))["param"] == "reasoning_effort"
