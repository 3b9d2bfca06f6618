"""The bound on the log-probabilities that an answer keeps, at the endpoints."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.server.config import DEFAULT_CONFIG
from jaxgen.server.limits import Limits
from tests.support.server_app import body, client_of, error_of, fake_engine

CONFIG = replace(DEFAULT_CONFIG, limits=Limits(max_logprob_entries=20))


@pytest.mark.parametrize(
    ("fields", "is_refused"),
    [
        ({"prompt": [[3] * 6, [3] * 4], "prompt_logprobs": 1, "max_tokens": 1}, False),
        ({"prompt": [[3] * 7, [3] * 4], "prompt_logprobs": 1, "max_tokens": 1}, True),
        ({"prompt": [3] * 4, "n": 3, "prompt_logprobs": 1, "max_tokens": 1}, True),
        ({"prompt": [3] * 21, "echo": True, "logprobs": 0, "max_tokens": 0}, True),
    ],
)
def test_those_of_prompts_are_counted_before_anything_is_computed(fields: dict[str, Any], is_refused: bool) -> None:
    engine = fake_engine()
    with client_of(engine, CONFIG) as client:
        answer = client.post("/v1/completions", json=body(**fields))
    assert (answer.status_code == 400, not engine.requests) == (is_refused, is_refused)
    if is_refused:
        assert "--max-logprob-entries" in error_of(answer.json())["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_those_of_the_answer_are_counted_as_they_come(stream: bool) -> None:
    """A stream that is read keeps none."""
    engine = fake_engine(pace=lambda *_: asyncio.sleep(0.002))
    with client_of(engine, CONFIG) as client:
        sent = body(logprobs=1, max_tokens=30, stream=stream)
        answer = client.post("/v1/completions", json=sent)
    if stream:
        assert "[DONE]" in answer.text
    else:
        assert (answer.status_code, error_of(answer.json())["param"]) == (400, "logprobs")
    assert engine.idle.wait(120)
    assert not engine.open
