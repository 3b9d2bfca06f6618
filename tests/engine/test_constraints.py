"""bad_words and allowed_token_ids in the engine: against a search by hand, and that load changes nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.request import FinishReason, Request
from jaxgen.core.sampling_params import Grammar
from tests.engine.test_grammars import DATE, MODEL, constrained, free, make_engine, run, tokenizer, under_any_load
from tests.support.engines import engine_config, request, tokens

PROMPT = "request 0: "
LENGTH = 12


def answer(**params: object) -> list[int]:
    one = request("a", tokenizer().encode(PROMPT), max_tokens=LENGTH, temperature=0.0, ignore_eos=True, **params)
    return tokens(run(make_engine(), [one])["a"])


def by_hand(may: Callable[[list[int]], bool]) -> list[int]:
    """The most probable token at each place of those that ``may`` come, from the alternatives of free requests."""
    engine, so_far = make_engine(), list[int]()
    for _ in range(LENGTH):
        prompt = tokenizer().encode(PROMPT) + so_far
        (event,) = run(engine, [request("one", prompt, max_tokens=1, temperature=0.0, logprobs=20)])["one"]
        assert event.logprobs is not None
        so_far.append(next(token for token, _ in event.logprobs.top if may([*so_far, token])))
    return so_far


def test_only_allowed_tokens_are_chosen() -> None:
    unbound = answer()
    allowed = tuple(token for token in range(MODEL.vocab_size) if token % 3 and token != unbound[0])
    found = answer(allowed_token_ids=allowed)
    assert found == by_hand(lambda so_far: so_far[-1] in allowed)
    assert found != unbound


def test_no_bad_word_is_completed() -> None:
    """The words are pairs of tokens that come without them, so that each hangs on the token just before."""
    unbound = answer()
    words = [tokenizer().decode(unbound[i : i + 2]).lstrip() for i in range(LENGTH - 1)]
    spelled = [tokenizer().encode(text) for word in words for text in (word, " " + word)]
    assert any(one in spelled for one in (unbound[i : i + 2] for i in range(4)))
    found = answer(bad_words=tuple(words))
    assert found == by_hand(lambda so_far: not any(so_far[-len(one) :] == one for one in spelled))
    assert found != unbound


def mixed() -> list[Request]:
    made = []
    digits = tuple(tokenizer().encode(digit)[0] for digit in "0123456789-")
    for seed in range(5):
        made += [
            free(f"allowed {seed}", seed, allowed_token_ids=tuple(range(seed + 2, 400, 3)), presence_penalty=1.0),
            free(f"words {seed}", seed, bad_words=("e", "the", "ab", "\ufffd", "quick brown"), min_tokens=3),
            constrained(f"all {seed}", DATE, seed, allowed_token_ids=(*digits, 1), bad_words=("19", "20", "3")),
            free(f"free {seed}", seed),
        ]
    return made


def test_answers_are_the_same_under_any_load_and_keep_to_their_fields() -> None:
    answers = set()
    for one, by_itself in under_any_load(mixed()):
        answers.add(tuple(tokens(by_itself)))
        ids, text = one.params.allowed_token_ids, tokenizer().decode(tokens(by_itself))
        assert ids is None or set(tokens(by_itself)) <= set(ids)
        if one.params.grammar is not None:
            assert by_itself[-1].finish_reason is FinishReason.STOP
            assert "3" not in text
            assert text[:2] not in ("19", "20")
    assert len(answers) > 12


def test_constant_fields_take_no_step_more_than_none() -> None:
    """A constant mask is loaded once, and its row does not wait for its tokens."""
    steps = list[int]()
    given: tuple[dict[str, object], ...] = ({}, {"allowed_token_ids": tuple(range(5, 300))}, {"bad_words": ("x",)})
    for params in given:
        engine = make_engine()
        run(engine, [free("a", 1, **params), free("b", 2)])
        steps.append(engine.stats().steps)
    assert steps[0] == steps[1] < steps[2]


def test_a_changing_mask_costs_no_step_where_steps_follow_one_another() -> None:
    steps = list[int]()
    for params in ({}, {"bad_words": ("x",)}):
        engine = make_engine(replace(engine_config(token_budget=32), run_ahead=False))
        run(engine, [free("a", 1, **params), free("b", 2)])
        steps.append(engine.stats().steps)
    assert steps[0] == steps[1]


def test_what_leaves_no_token_ends_with_an_error_of_its_field() -> None:
    bad = constrained("bad", "abx", 0, grammar=Grammar("start: /abx/"), bad_words=("ab",))
    events = run(make_engine(), [bad, free("good", 1)])
    end = events["bad"][-1]
    assert (end.finish_reason, end.param) == (FinishReason.ERROR, "bad_words")
    assert "no token is left" in (end.error or "")
    assert events["good"][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("params", [{"bad_words": ("a",)}, {"allowed_token_ids": (5,)}])
def test_an_engine_without_a_tokenizer_refuses(params: dict[str, object]) -> None:
    with pytest.raises(RequestRefusedError, match=next(iter(params))):
        make_engine().add(free("a", 0, **params))
