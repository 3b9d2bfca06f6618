"""Requests under grammars in the engine: what they say, what it does to others, and that load changes nothing."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.core.config import EngineConfig
from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sampling_params import Grammar
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.sampling.sampler import keep_allowed
from jaxgen.text.constraint import Constraints
from jaxgen.text.grammar_state import GrammarState, advance
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers
from tests.support.engines import LLAMA, compiled_step, engine_config, params_of, request, tokens

MODEL = replace(LLAMA, vocab_size=437)
EOS = 1
DATE = r"[12][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9]( at [a-z]{2,9})?"
CHOICE = "yes|no|perhaps, perhaps not"


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tiny_tokenizers.byte_level())


@cache
def constraints() -> Constraints:
    return Constraints(tokenizer(), MODEL.vocab_size, frozenset({EOS}))


def make_engine(config: EngineConfig | None = None, /, **limits: int) -> Engine:
    config = config or engine_config(**({"token_budget": 32} | limits))
    return build_engine(MODEL, config, params_of(MODEL), frozenset({EOS}), compiled=compiled_step(MODEL, config))


def run(engine: Engine, requests: list[Request]) -> dict[str, list[TokenEvent]]:
    for one in requests:
        engine.add(one, constraints().start(one.params).result() if one.params.is_constrained else None)
    events: dict[str, list[TokenEvent]] = {one.request_id: [] for one in requests}
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
    return events


def constrained(name: str, regex: str, seed: int, **params: object) -> Request:
    prompt = tokenizer().encode(f"request {seed % 3}: ")
    given = {"max_tokens": 40, "temperature": 1.0, "seed": seed, "grammar": Grammar(f"start: /{regex}/")}
    return request(name, prompt, **(given | params))


def free(name: str, seed: int, **params: object) -> Request:
    given = {"max_tokens": 20, "temperature": 1.0, "seed": seed, "ignore_eos": True}
    return request(name, tokenizer().encode(f"request {seed % 3}: "), **(given | params))


def mixed() -> list[Request]:
    made = []
    for seed in range(6):
        made += [
            constrained(f"date {seed}", DATE, seed),
            free(f"free {seed}", seed),
            constrained(f"choice {seed}", CHOICE, seed, repetition_penalty=1.3, presence_penalty=1.0),
        ]
    return made


def under_any_load(wanted: list[Request]) -> Iterator[tuple[Request, list[TokenEvent]]]:
    """Each with its events alone, whose tokens are those that it has among all, also where some are preempted."""
    together = run(make_engine(), wanted)
    preempting = make_engine(num_blocks=7, max_model_len=56, token_budget=7)
    crowded = run(preempting, wanted)
    assert preempting.stats().preemptions > 0
    alone = make_engine()
    for one in wanted:
        by_itself = run(alone, [one])[one.request_id]
        assert tokens(by_itself) == tokens(together[one.request_id]) == tokens(crowded[one.request_id])
        yield one, by_itself


def test_answers_are_of_their_grammar_and_the_same_under_any_load() -> None:
    dates = set()
    for one, by_itself in under_any_load(mixed()):
        if one.params.grammar is None:
            assert tokens(by_itself) == tokens(run(make_engine(), [one])[one.request_id])
            continue
        assert by_itself[-1].finish_reason is FinishReason.STOP
        regex = one.params.grammar.text.removeprefix("start: /").removesuffix("/")
        assert re.fullmatch(regex, tokenizer().decode(tokens(by_itself)))
        if one.request_id.startswith("date"):
            dates.add(tokenizer().decode(tokens(by_itself)))
    assert len(dates) > 3


def test_one_that_ends_at_max_tokens_has_the_beginning_of_a_text() -> None:
    (events,) = run(make_engine(), [constrained("cut", DATE, seed=0, max_tokens=3)]).values()
    assert events[-1].finish_reason is FinishReason.LENGTH
    assert re.match(r"[12][0-9]*", tokenizer().decode(tokens(events)))


def test_the_others_go_on_in_every_step() -> None:
    engine = make_engine()
    for one in (constrained("date", DATE, 0), free("free", 0), constrained("choice", CHOICE, 1)):
        engine.add(one, constraints().start(one.params).result() if one.params.is_constrained else None)
    per_step = [[event.request_id for event in engine.step()] for _ in range(9)]
    assert all("free" in told for told in per_step[2:])
    assert ["date" in told for told in per_step[2:]] == [False, True] * 3 + [False]


def test_one_by_itself_takes_a_step_for_each_token() -> None:
    engine = make_engine()
    (events,) = run(engine, [constrained("letters", "[a-f]+", 0)]).values()
    assert engine.stats().steps == len(tokens(events))


def test_log_probabilities_are_those_of_the_model() -> None:
    first = {}
    for one in (constrained("date", DATE, 0, logprobs=5), free("free", 0, logprobs=5)):
        first[one.request_id] = run(make_engine(), [one])[one.request_id][0].logprobs
    assert first["date"] is not None
    assert first["free"] is not None
    assert first["date"].top == first["free"].top
    assert first["date"].logprob < first["free"].top[0][1]


def test_min_tokens_holds_the_end_back() -> None:
    short = run(make_engine(), [constrained("a", "a{1,30}", seed, max_tokens=40) for seed in (1,)])["a"]
    held = run(make_engine(), [constrained("a", "a{1,30}", 1, max_tokens=40, min_tokens=12)])["a"]
    assert len(tokens(short)) < 12 < len(tokens(held))
    whole = run(make_engine(), [constrained("a", "a{3}", 1, max_tokens=40, min_tokens=12)])["a"]
    assert tokens(whole) == [*tokenizer().encode("aaa"), EOS]
    (stop,) = tokenizer().encode("b")
    fields = {"max_tokens": 40, "min_tokens": 12, "stop_token_ids": (stop,)}
    forced = run(make_engine(), [constrained("a", "ab", 1, **fields)])["a"]
    assert tokens(forced) == tokenizer().encode("ab"), "the grammar allows nothing but a token that ends it"


def test_one_whose_grammar_fails_ends_with_an_error_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(taken: list[tuple[GrammarState, int]]) -> None:
        advance(taken)
        for state, _ in taken:
            if state is broken.grammar:
                state.error = "too complex"

    monkeypatch.setattr("jaxgen.text.constraint.advance", failing)
    bad, good = constrained("bad", DATE, 0), constrained("good", DATE, 1)
    engine, broken = make_engine(), constraints().start(bad.params).result()
    engine.add(bad, broken)
    events = []
    engine.add(good, constraints().start(good.params).result())
    while engine.has_work:
        events += engine.step()
    ends = {event.request_id: event for event in events if event.finish_reason is not None}
    assert ends["bad"].finish_reason is FinishReason.ERROR
    assert "too complex" in (ends["bad"].error or "")
    assert ends["bad"].param == "grammar"
    assert ends["good"].finish_reason is FinishReason.STOP
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_an_engine_without_a_tokenizer_refuses() -> None:
    with pytest.raises(RequestRefusedError, match="grammar"):
        make_engine().add(constrained("a", "a", 0))


def test_logits_of_what_may_not_come_are_minus_infinity() -> None:
    draw = np.random.default_rng(0)
    logits = draw.standard_normal((4, 70)).astype(np.float32)
    allowed = draw.integers(-(2**31), 2**31, (3, 3), dtype=np.int64).astype(np.int32)
    rows, bound = np.array([2, 3, 0, 1], np.int32), np.array([1, 0, 1, 0], np.int32)
    kept = np.asarray(keep_allowed(jnp.asarray(logits), jnp.asarray(allowed), jnp.asarray(rows), jnp.asarray(bound)))
    for r in range(4):
        for token in range(70):
            may = not bound[r] or int(allowed[rows[r], token // 32]) >> (token % 32) & 1
            assert kept[r, token] == (logits[r, token] if may else -np.inf)
