"""How long an answer may be by default: as long as it fits. Only what a caller asks for is refused."""

from dataclasses import replace
from typing import Any

import pytest

from jaxgen.core.sampling_params import SamplingDefaults
from tests.support.fakes import FakeEngine
from tests.support.server_app import body, client_of, complete, fake_engine, refusal

CONTEXT = 128


def engine_with(default: int | None) -> FakeEngine:
    """Of a model whose generation_config has this max_new_tokens; None: none."""
    engine = fake_engine()
    engine.model = replace(engine.model, max_model_len=CONTEXT, defaults=SamplingDefaults(max_tokens=default))
    return engine


def lengths(default: int | None, **fields: Any) -> list[int]:
    engine = engine_with(default)
    complete(engine, ignore_eos=True, **fields)
    return [request.params.max_tokens for request in engine.requests]


@pytest.mark.parametrize("default", [CONTEXT, 10 * CONTEXT])
def test_a_models_default_as_long_as_the_context_shrinks_to_what_fits(default: int) -> None:
    assert lengths(default, prompt=[5] * 3) == [CONTEXT - 3]
    with client_of(engine_with(default)) as client:
        answer = client.post("/v1/latency", json=body())
        assert (answer.status_code, answer.json()["refused"]) == (200, None)
        (rendered,) = client.post("/v1/completions/render", json=body(prompt=[5] * 3)).json()
        assert rendered["sampling_params"]["max_tokens"] == CONTEXT - 3


def test_each_prompt_has_the_room_that_it_leaves() -> None:
    assert sorted(lengths(100, prompt=[[5], [5] * 40, [5] * 127], n=2)) == [1, 1, 88, 88, 100, 100]


def test_a_prompt_near_the_end_of_the_context_gets_what_is_left() -> None:
    assert lengths(None, prompt=[5] * (CONTEXT - 5)) == [5]
    assert lengths(None, prompt=[5] * (CONTEXT - 16)) == [16]
    error = refusal(engine_with(None), prompt=[5] * CONTEXT)
    assert "128 in the prompt, 1 in the completion" in error["message"]


@pytest.mark.parametrize("default", [None, CONTEXT])
def test_what_the_caller_asks_for_is_refused(default: int | None) -> None:
    error = refusal(engine_with(default), prompt=[5] * (CONTEXT - 5), max_tokens=16)
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    assert lengths(default, prompt=[5] * CONTEXT, max_tokens=0, echo=True) == [0]


def test_a_default_is_no_less_than_the_callers_min_tokens() -> None:
    assert lengths(None, min_tokens=20) == [20]
    assert lengths(4, min_tokens=20) == [20]
    error = refusal(engine_with(None), prompt=[5] * (CONTEXT - 5), min_tokens=6)
    assert error["param"] == "min_tokens"
    assert "the context has room for 5" in error["message"]


@pytest.mark.parametrize(("default", "kept"), [(None, CONTEXT - 16), (20, CONTEXT - 20), (CONTEXT, CONTEXT // 2)])
def test_a_prompt_cut_to_what_fits_leaves_room_for_the_default(default: int | None, kept: int) -> None:
    engine = engine_with(default)
    complete(engine, prompt=[5] * 300, truncate_prompt_tokens=-1)
    assert [len(request.prompt) for request in engine.requests] == [kept]
