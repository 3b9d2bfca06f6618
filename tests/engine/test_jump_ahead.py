"""Tokens that may follow alone under a grammar: the same answers as where a step samples each, in fewer steps."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from jaxgen.core.config import EngineConfig
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine import constraints as followed
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.text import grammar_state
from tests.engine.test_grammars import EOS, MODEL, constrained, constraints, free, run, tokenizer
from tests.support.engines import compiled_step, engine_config, params_of, request, tokens

REGEXES = (
    r"[12][0-9]{3}-(0[1-9]|1[0-2]), (a fox|a dog|a lazy dog)( jumps over it)?",
    r"yes|no|perhaps, perhaps not",
    r"(the quick brown fox [a-c]{1,3}; )+",
    r'\{"name":"[a-z]{1,4}","colour":"(red|green)","size":[0-9]{1,2}\}',
    r"[ab]{0,40}",
)
CONFIG = engine_config(token_budget=32)
CONFIGS = {
    "ahead": CONFIG,
    "in turn": replace(CONFIG, run_ahead=False),
    "crowded": engine_config(num_blocks=7, max_model_len=56, token_budget=7),
}


def make_engine(config: EngineConfig = CONFIG, *, jumps: bool = True) -> Engine:
    compiled = compiled_step(MODEL, config)
    return build_engine(MODEL, config, params_of(MODEL), frozenset({EOS}), compiled=compiled, jumps=jumps)


def drawn(seed: int) -> list[Request]:
    """Requests under grammars with every field that bears on what is sampled, and a few without grammars."""
    draw, made = random.Random(seed), [free("free", seed)]
    for index in range(7):
        fields: dict[str, object] = {"max_tokens": draw.choice([1, 3, 9, 25, 40])}
        fields["min_tokens"] = draw.choice([0, 0, 2, 99])
        fields["min_tokens"] = min(int(str(fields["min_tokens"])), int(str(fields["max_tokens"])))
        optional: dict[str, object] = {
            "repetition_penalty": 1.4,
            "frequency_penalty": 0.7,
            "presence_penalty": -1.0,
            "temperature": draw.choice([0.0, 0.3, 2.0]),
            "top_k": 3,
            "top_p": 0.7,
            "logprobs": draw.choice([None, 0, 4]),
            "logit_bias": {tokenizer().encode(letter)[0]: draw.uniform(-5.0, 5.0) for letter in "a0gr"},
            "bad_words": ("red", "an", "01"),
            "stop_token_ids": (tokenizer().encode("d")[0],),
            "allowed_token_ids": None if draw.random() < 0.8 else (EOS, *range(3, 400)),
        }
        fields |= {name: value for name, value in optional.items() if draw.random() < 0.4}
        made.append(constrained(f"{index}", draw.choice(REGEXES), 10 * seed + index, **fields))
    return made


def what_was_told(events: list[TokenEvent]) -> list[TokenEvent]:
    """The events without their times, and without what was cached, which depends on who came before."""
    return [replace(event, latency=None, cached_tokens=None) for event in events]


@cache
def sampled_one_by_one(seed: int) -> dict[str, list[TokenEvent]]:
    told = run(make_engine(jumps=False), drawn(seed))
    return {name: what_was_told(events) for name, events in told.items()}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("seed", range(3))
def test_every_event_is_the_same_without_it(seed: int, config: str) -> None:
    engine = make_engine(CONFIGS[config])
    told = run(engine, drawn(seed))
    assert {name: what_was_told(events) for name, events in told.items()} == sampled_one_by_one(seed)
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_the_draws_reach_what_they_are_for() -> None:
    events = [told for seed in range(3) for told in sampled_one_by_one(seed).values()]
    reasons = {told[-1].finish_reason for told in events}
    assert {FinishReason.STOP, FinishReason.LENGTH} <= reasons
    assert any(event.logprobs is not None for told in events for event in told)
    crowded = make_engine(CONFIGS["crowded"])
    run(crowded, drawn(0))
    assert crowded.stats().preemptions > 0


def test_an_answer_takes_a_step_for_each_choice() -> None:
    text = r'\{"name":"ab","colour":"(red|green)"\}'
    steps = {}
    for jumps in (True, False):
        engine = make_engine(jumps=jumps)
        (events,) = run(engine, [constrained("a", text, 0)]).values()
        steps[jumps] = engine.stats().steps
        assert engine.stats().generation_tokens == len(tokens(events))
    # The prompt's step samples the first token, which may be no other; then the two colours are one choice. By the
    # times of steps, what is forced before it may be computed in two.
    assert steps[True] in (3, 4)
    assert steps[False] == len(tokens(events)) == 31


def test_log_probabilities_are_wanted_of_every_token_so_each_takes_a_step() -> None:
    engine = make_engine()
    (events,) = run(engine, [constrained("a", "perhaps, perhaps not", 0, logprobs=0)]).values()
    assert engine.stats().steps == len(tokens(events))


def test_a_long_run_is_shared_out_over_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token that a bounded run leaves is sampled, under a mask that allows it alone."""
    monkeypatch.setattr(followed, "MOST_FORCED", 5)
    engine, one = make_engine(), constrained("a", "the quick brown fox jumps over the lazy dog", 0)
    engine.add(one, constraints().start(one.params).result())
    per_step = []
    while engine.has_work:
        per_step.append(len(engine.step()))
    assert max(per_step) == 1 + 5
    whole = run(make_engine(jumps=False), [one])["a"]
    assert sum(per_step) == len(tokens(whole))


def test_a_step_forces_no_more_tokens_than_the_next_can_compute() -> None:
    """Of all sequences together: each takes the host some time, in which no client gets its tokens."""
    text = "the quick brown fox jumps over the lazy dog"
    config = engine_config(token_budget=8)
    engine, per_step = make_engine(config), []
    for index in range(4):
        one = constrained(f"{index}", text, 0)
        engine.add(one, constraints().start(one.params).result())
    while engine.has_work:
        per_step.append(len(engine.step()))
    assert 8 < max(per_step) <= 4 + 8


def test_a_constant_mask_of_one_token_is_sampled() -> None:
    """Its row does not wait for its tokens, so on a GPU the next of them is in flight."""
    one = Request("a", tuple(tokenizer().encode("a")), SamplingParams(max_tokens=6, allowed_token_ids=(7,)))
    assert tokens(run(make_engine(), [one])["a"]) == [7] * 6
    changing = replace(one, params=replace(one.params, min_tokens=2))
    assert tokens(run(make_engine(), [changing])["a"]) == [7] * 6


def test_a_conversation_goes_on_from_an_answer_with_forced_tokens() -> None:
    """Their K and V are those that a prompt with the same tokens has."""
    engine = make_engine()
    one = constrained("a", REGEXES[3], 5, max_tokens=60)
    answer = tokens(run(engine, [one])["a"])
    prompt = [*one.prompt, *answer, *tokenizer().encode(" and then")]
    found = run(engine, [request("b", prompt, max_tokens=8, temperature=0.0, ignore_eos=True)])["b"]
    anew = run(make_engine(), [request("b", prompt, max_tokens=8, temperature=0.0, ignore_eos=True)])["b"]
    assert (found[0].cached_tokens or 0) > len(one.prompt)
    assert tokens(found) == tokens(anew)


def test_a_grammar_alone_may_say_a_whole_answer() -> None:
    (events,) = run(make_engine(), [replace(constrained("a", "x", 0), prompt=(5,))]).values()
    assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + [FinishReason.STOP]
    assert tokenizer().decode(tokens(events)) == "x"


def all_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every constraint wait until nothing else can be computed."""
    for name, value in (("CHEAP", -1.0), ("SHARE", 0.0), ("MOST_SAVED", 0.0)):
        monkeypatch.setattr(followed, name, value)


@pytest.mark.parametrize("config", ["ahead", "crowded"])
def test_every_event_is_the_same_where_all_wait_as_long_as_anything_runs(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_wait(monkeypatch)
    engine = make_engine(CONFIGS[config])
    told = run(engine, drawn(0))
    assert {name: what_was_told(events) for name, events in told.items()} == sampled_one_by_one(0)
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_one_sits_out_and_others_have_a_token_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    all_wait(monkeypatch)
    engine, costly, other = make_engine(), constrained("costly", "[a-f]+", 0), free("free", 0)
    engine.add(costly, constraints().start(costly.params).result())
    engine.add(other)
    told = [[event.request_id for event in engine.step()] for _ in range(20)]
    assert sum(step.count("free") for step in told) == 19
    assert sum(step.count("costly") for step in told) == 1
    rest: list[str] = []
    while engine.has_work:
        rest += [event.request_id for event in engine.step()]
    assert len(rest) > 2


def test_equal_requests_have_one_text_and_compute_a_mask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counted(matcher: object, words: int) -> Any:
        computed.append(matcher)
        return next_mask(matcher, words)

    next_mask: Any = grammar_state.next_mask
    one = constrained("0", "[a-f]{3,9}", 0, temperature=0.0)
    made = [constrained(str(i), "[a-f]{3,9}", 0, temperature=0.0) for i in range(4)]
    alone = tokens(run(make_engine(), [one])["0"])
    monkeypatch.setattr(grammar_state, "next_mask", counted)
    together = run(make_engine(), made)
    assert [tokens(together[str(i)]) for i in range(4)] == [alone] * 4
    assert len(computed) <= len(alone) < 4 * len(alone)
    assert tokenizer().decode(alone)
