"""Random bodies: every answer is a completion or an error in OpenAI's shape, and the server never fails."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.server.schema.base import CompletionRequest
from tests.support.fakes import MODEL
from tests.support.fuzzing import LONG, QUICK
from tests.support.server_app import client_of, fake_engine

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 300)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just(MODEL),
    "prompt": st.text(max_size=20)
    | st.lists(st.integers(0, 399), max_size=9)
    | st.lists(st.text(max_size=5), max_size=4),
    "max_tokens": st.integers(0, 20),
    "n": st.integers(1, 3),
    "stream": st.booleans(),
    "logprobs": st.integers(0, 5),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=4),
    "logit_bias": st.dictionaries(st.integers(0, 399).map(str), st.floats(-100, 100), max_size=4),
    "allowed_token_ids": st.lists(st.integers(0, 399), max_size=4),
    "bad_words": st.lists(st.text(max_size=3), max_size=4),
    "truncate_prompt_tokens": st.integers(-1, 9),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
}
FIELDS = sorted(CompletionRequest.model_fields)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly plausible fields, some of them nonsense, now and then one that does not exist."""
    body: dict[str, Any] = {"model": MODEL, "prompt": draw(PLAUSIBLE["prompt"])}
    for name in draw(st.lists(st.sampled_from(FIELDS), max_size=6, unique=True)):
        plausible = PLAUSIBLE.get(name, SCALARS)
        body[name] = draw(st.one_of(plausible, plausible, plausible, JSON))
    if draw(st.integers(0, 9)) == 0:
        body[draw(st.text(min_size=1, max_size=6))] = draw(SCALARS)
    return body


def check(body: dict[str, Any]) -> int:
    engine = fake_engine()
    with client_of(engine) as client:
        answer = client.post("/v1/completions", content=json.dumps(body))
    assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text[:500])
    assert not engine.open
    if answer.status_code == 200:
        if not body.get("stream"):
            assert answer.json()["choices"]
        else:
            assert answer.text.endswith("data: [DONE]\n\n")
    else:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    return int(answer.status_code)


@QUICK
@given(bodies())
def test_fuzz(body: dict[str, Any]) -> None:
    check(body)


@pytest.mark.full
@LONG
@given(bodies())
def test_fuzz_long(body: dict[str, Any]) -> None:
    check(body)


@pytest.mark.full
@LONG
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_fuzz_bytes(content: bytes) -> None:
    with client_of(fake_engine()) as client:
        answer = client.post("/v1/completions", content=content)
    assert answer.status_code == 400, (content, answer.text[:500])
    assert answer.json()["error"]["message"]
