"""Requests whose answers have begun elsewhere: they go on with the same bits, as after a preemption."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.request import Request, TokenEvent
from jaxgen.engine.engine import Engine
from tests.engine.test_grammars import DATE, MODEL, constrained, constraints, free, make_engine
from tests.support.engines import tokens


def run(engine: Engine, requests: Iterable[Request]) -> dict[str, list[TokenEvent]]:
    events: dict[str, list[TokenEvent]] = {}
    for one in requests:
        events[one.request_id] = []
        made = constraints().start(one.params, one.answer).result() if one.params.is_constrained else None
        engine.add(one, made)
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(replace(event, cached_tokens=None))
    return events


def mixed() -> list[Request]:
    return [
        free("plain", 0, logprobs=3),
        free("greedy", 1, temperature=0.0, logprobs=2, max_tokens=60),
        free("penalties", 2, presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.3, logprobs=1),
        free("no end before", 3, ignore_eos=False, min_tokens=15, stop_token_ids=tuple(range(3, 60))),
        free("bad words", 4, bad_words=("e", "the", "ab", "quick brown"), min_tokens=3),
        free("allowed", 5, allowed_token_ids=tuple(range(2, 400, 3)), logit_bias={5: 3.0}, top_p=0.9),
        constrained("date", DATE, 6, logprobs=1, presence_penalty=1.0),
        constrained("words", "([a-z]{2,5} ){4}", 7),
    ]


@pytest.mark.shipped
@pytest.mark.parametrize("limits", [{}, {"num_blocks": 7, "max_model_len": 56, "token_budget": 7}], ids=["", "crowded"])
def test_the_rest_is_the_same_to_the_bit(limits: dict[str, int]) -> None:
    whole = run(make_engine(), mixed())
    begun, rests = [], {}
    for one in mixed():
        events = whole[one.request_id]
        for known in {1, len(events) // 2, len(events) - 1}:
            name = f"{one.request_id} {known}"
            if len(one.prompt) + one.params.max_tokens <= limits.get("max_model_len", 256):
                begun.append(replace(one, request_id=name, answer=tuple(tokens(events)[:known])))
                rests[name] = [replace(event, request_id=name) for event in events[known:]]
    assert len(begun) > 12
    engine = make_engine(**limits)
    begun.sort(key=lambda one: len(one.answer))  # those that grow most at once: there are too few blocks
    assert run(engine, begun) == rests
    assert not limits or engine.stats().preemptions
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_the_first_event_has_what_belongs_to_the_prompt() -> None:
    one = free("a", 1, prompt_logprobs=2, logprobs=1)
    (events,) = run(make_engine(), [one]).values()
    (rest,) = run(make_engine(), [replace(one, answer=tuple(tokens(events)[:7]))]).values()
    assert events[0].prompt_logprobs is not None
    assert rest == [replace(events[7], prompt_logprobs=events[0].prompt_logprobs), *events[8:]]


def test_what_is_known_is_computed_like_a_prompt() -> None:
    one = free("a", 1, max_tokens=60)
    engine = make_engine()
    (events,) = run(engine, [one]).values()
    before = engine.stats().steps
    fresh = make_engine()
    run(fresh, [replace(one, answer=tuple(tokens(events)[:50]))])
    assert before > 55
    assert fresh.stats().steps < 20


@pytest.mark.parametrize(("answer", "reason"), [((MODEL.vocab_size,), "answer"), ((5,) * 20, "no token is left")])
def test_what_cannot_have_come_is_refused(answer: tuple[int, ...], reason: str) -> None:
    with pytest.raises(RequestRefusedError, match=reason):
        make_engine().add(replace(free("a", 1), answer=answer))


def test_an_answer_that_its_grammar_forbids_is_refused() -> None:
    one = constrained("date", DATE, 6)
    with pytest.raises(RequestRefusedError, match="grammar"):
        constraints().start(one.params, (5, 6, 7)).result()
