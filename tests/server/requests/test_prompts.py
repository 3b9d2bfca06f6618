"""Prompts and choices of a completion: the requests that the engine gets of them."""

from typing import Any

import pytest

from jaxgen.core.sampling_params import choice_seed
from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Queue
from tests.support.fakes import FakeEngine
from tests.support.server_app import SPACED_TOKENIZER, TOKENIZER, body, client_of, complete, fake_engine, refusal


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()


@pytest.mark.parametrize("prompt", ["a long prompt of several tokens", list(range(5, 90))])
def test_the_last_tokens_of_a_prompt_are_kept(engine: FakeEngine, prompt: Any) -> None:
    tokens = tuple(TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt)
    for most in (1, 2, len(tokens), len(tokens) + 1):
        engine.requests.clear()
        answer = complete(engine, prompt=prompt, truncate_prompt_tokens=most, echo=True, logprobs=0)
        assert [request.prompt for request in engine.requests] == [tokens[-most:]]
        assert answer["usage"]["prompt_tokens"] == min(most, len(tokens))
        shown = answer["choices"][0]
        assert shown["text"].startswith(TOKENIZER.decode(tokens[-most:]))
        assert len(shown["logprobs"]["tokens"]) == min(most, len(tokens)) + 16


def test_a_prompt_is_cut_to_what_the_answer_leaves(engine: FakeEngine) -> None:
    long = "word " * 300
    tokens = tuple(TOKENIZER.encode(long))
    assert refusal(engine, prompt=long)["code"] == "context_length_exceeded"
    complete(engine, prompt=[long, "Say"], max_tokens=28, truncate_prompt_tokens=-1)
    assert [request.prompt for request in engine.requests] == [tokens[-100:], tuple(TOKENIZER.encode("Say"))]
    assert refusal(fake_engine(), prompt=long, max_tokens=128, truncate_prompt_tokens=-1)["param"] == "max_tokens"
    with client_of(spaced := fake_engine(tokenizer=SPACED_TOKENIZER)) as client:
        assert client.post("/v1/completions", json=body(prompt=long, truncate_prompt_tokens=10)).status_code == 200
    whole = SPACED_TOKENIZER.encode(long)
    assert spaced.requests[0].prompt == (whole[0], *whole[-9:]), "the token that begins every text stays"


def test_prompts_of_every_kind(engine: FakeEngine) -> None:
    kinds: list[tuple[Any, list[tuple[int, ...]]]] = [
        ("Say é", [tuple(TOKENIZER.encode("Say é"))]),
        (["a", "b"], [tuple(TOKENIZER.encode("a")), tuple(TOKENIZER.encode("b"))]),
        ([5, 399], [(5, 399)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
    ]
    for prompt, expected in kinds:
        engine.requests.clear()
        complete(engine, prompt=prompt)
        assert [request.prompt for request in engine.requests] == expected


def test_long_prompts_are_read_in_a_thread_with_the_same_result() -> None:
    texts = ["The quick brown fox " * 3, "é😀"]
    answers = []
    for chars in (10**6, 0):
        engine = fake_engine()
        with client_of(engine, ServerConfig(queue=Queue(inline_encode_chars=chars))) as client:
            answer = client.post("/v1/completions", json=body(prompt=texts, echo=True, logprobs=1))
            answers.append((answer.json()["choices"], [request.prompt for request in engine.requests]))
            assert client.post("/v1/completions", json=body(prompt=["a", ""])).status_code == 400
    assert answers[0] == answers[1]


def test_seeds_differ_by_choice_and_not_by_prompt(engine: FakeEngine) -> None:
    complete(engine, prompt=["a", "b"], n=3, seed=11)
    seeds = [choice_seed(11, i) for i in range(3)]
    assert [request.params.seed for request in engine.requests] == seeds * 2
    assert len({request.request_id for request in engine.requests}) == 6


def test_every_choice_has_the_priority_of_its_request(engine: FakeEngine) -> None:
    complete(engine, n=2, priority=-(2**31) + 1)
    complete(engine)
    assert [request.priority for request in engine.requests] == [-(2**31) + 1] * 2 + [0]


def test_choices_of_one_request_are_bounded(engine: FakeEngine) -> None:
    assert refusal(engine, prompt=["a"] * 3, n=100)["param"] == "n"
    assert refusal(engine, prompt=["a"] * 3, best_of=100)["param"] == "best_of"
    complete(engine, prompt=["a"] * 2, n=128, max_tokens=1)
    assert len(engine.requests) == 256
