"""The pieces of a choice join to the same whole, however often one is taken."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.core.request import Alternatives, FinishReason, Request, TokenEvent, TokenLogprobs
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.server.errors import ApiError
from jaxgen.server.generation.choice import Choice, ChoiceDelta, given_up
from jaxgen.server.generation.logprobs import ChatLogprobs, LogprobList, LogprobQuota
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.tool_calls.deltas import merged
from tests.support.fakes import fake_logprobs
from tests.support.server_app import SPACED_TOKENIZER, TOKENIZER, byte_by_byte

EOS = 1
TOKENS = st.sampled_from([*byte_by_byte("aabb"), TOKENIZER.encode("the")[0], *byte_by_byte("é"), EOS])

STOPS = st.text("ab", min_size=2, max_size=4) | st.sampled_from(["the", "h", "é", "\ufffd"])


def make_choice(sampling: SamplingParams, prompt: Prompt, *, echo: bool) -> Choice:
    params = CompletionParams(
        sampling=sampling,
        n=1,
        best_of=1,
        echo=echo,
        logprobs=sampling.logprobs,
        stream=True,
        include_usage=False,
        continuous_usage=False,
        cache_salt=None,
    )
    return Choice(
        0, prompt, Request("r", prompt.tokens, sampling), TOKENIZER, params, LogprobList(TOKENIZER, LogprobQuota(2**20))
    )


def join(pieces: list[ChoiceDelta]) -> ChoiceDelta:
    logprobs: dict[str, list[Any]] = {}
    for piece in pieces:
        assert piece.logprobs is not None
        for name, values in piece.logprobs.items():
            logprobs.setdefault(name, []).extend(values)
    token_ids = tuple(token for piece in pieces for token in piece.token_ids)
    return ChoiceDelta(
        merged([delta for piece in pieces for delta in piece.deltas]),
        logprobs,
        pieces[-1].finish_reason,
        token_ids,
        *pieces[-1][4:],  # of all tokens so far
    )


@settings(deadline=None)
@given(
    tokens=st.lists(TOKENS, min_size=1, max_size=20),
    stop=st.lists(STOPS, max_size=2).map(tuple),
    min_tokens=st.integers(0, 3),
    echo=st.booleans(),
    data=st.data(),
)
def test_pieces_join_to_the_whole(
    tokens: list[int], stop: tuple[str, ...], min_tokens: int, echo: bool, data: st.DataObject
) -> None:
    sampling = SamplingParams(max_tokens=100, min_tokens=min_tokens, stop=stop, logprobs=0)
    prompt = Prompt(tuple(byte_by_byte("ba")), "ba" if echo else "", (0, 1) if echo else ())
    often, once = (make_choice(sampling, prompt, echo=echo) for _ in range(2))
    pieces = []
    for i, token in enumerate(tokens):
        last = i + 1 == len(tokens)
        event = TokenEvent("r", token, fake_logprobs(token, 0), finish_reason=FinishReason.LENGTH if last else None)
        often.feed(event)
        once.feed(event)
        if often.has_updates and (data.draw(st.booleans()) or often.finish_reason):
            pieces.append(often.take())
            assert not often.has_updates
            assert pieces[-1].text or pieces[-1].finish_reason or (pieces[-1].logprobs or {})["tokens"]
        if often.finish_reason:
            break
    whole = once.take()
    assert join(pieces) == whole
    assert whole.logprobs is not None
    assert len(whole.logprobs["tokens"]) == once.num_tokens + 2 * echo
    assert all(0 <= offset <= len(whole.text) for offset in whole.logprobs["text_offset"])


def test_a_token_whose_text_is_held_waits_for_its_place() -> None:
    a, b = byte_by_byte("ab")
    sampling = SamplingParams(max_tokens=100, stop=("aaa",), logprobs=0)
    choice = make_choice(sampling, Prompt((5,)), echo=False)
    for token in (a, a):
        choice.feed(TokenEvent("r", token, fake_logprobs(token, 0)))
    assert choice.has_updates
    first = choice.take()
    assert first.logprobs is not None
    assert (first.text, first.logprobs["tokens"], first.logprobs["text_offset"]) == ("", ["a"], [0])
    assert not choice.has_updates
    choice.feed(TokenEvent("r", b, fake_logprobs(b, 0)))
    second = choice.take()
    assert second.logprobs is not None
    assert (second.text, second.logprobs["tokens"], second.logprobs["text_offset"]) == ("aab", ["a", "b"], [1, 2])


def test_alternatives_of_one_text_count_once_as_the_best() -> None:
    best, other = 100, 260
    assert SPACED_TOKENIZER.token_text(best) == SPACED_TOKENIZER.token_text(other) == "a"
    logprobs = LogprobList(SPACED_TOKENIZER, LogprobQuota(9))
    logprobs.append(other, TokenLogprobs(other, -3.0, ((best, -1.0), (101, -2.0)), 9), 0)
    found = logprobs.take(0, ended=True)
    assert (found["token_logprobs"], found["top_logprobs"]) == ([-3.0], [{"a": -1.0, "b": -2.0}])


def test_a_log_probability_that_is_no_number_is_an_error() -> None:
    """JSON has no NaN, and null would say that there is none."""
    with pytest.raises(ValueError, match="NaN"):
        LogprobList(TOKENIZER, LogprobQuota(9)).append(5, TokenLogprobs(5, float("nan"), (), 1), 0)
    with pytest.raises(ValueError, match="NaN"):
        ChatLogprobs(TOKENIZER, LogprobQuota(9)).append(5, TokenLogprobs(5, -1.0, ((6, float("nan")),), 1), 0)


def test_what_a_field_is_to_blame_for_is_no_error_of_the_server() -> None:
    ended = TokenEvent("r", finish_reason=FinishReason.ERROR, error="tools could not be followed", param="tools")
    told = given_up(ended)
    assert (told.status, told.message, told.param) == (400, "tools could not be followed.", "tools")
    assert given_up(TokenEvent("r", finish_reason=FinishReason.ERROR, error="a step failed")).status == 500


def test_what_is_kept_of_log_probabilities_is_bounded_and_what_is_sent_is_not_kept() -> None:
    """The choices of a request share a quota."""
    quota = LogprobQuota(9)
    first, second = (LogprobList(TOKENIZER, quota) for _ in range(2))
    entry = TokenLogprobs(5, -1.0, ((5, -1.0), (6, -2.0)), 1)
    for _ in range(3):
        first.append(5, entry, 0)
    with pytest.raises(ApiError, match="max-logprob-entries") as refused:
        second.append(5, entry, 0)
    assert (refused.value.status, refused.value.param) == (400, "logprobs")
    first.take(0, ended=False)
    second.append(5, entry, 0)


def test_alternatives_are_as_a_tuple_of_pairs() -> None:
    pairs = ((5, -0.1), (7, float("-inf")))
    found = Alternatives(np.array([5, 7], np.int32).tobytes(), np.array([-0.1, float("-inf")]).tobytes())
    assert repr(found) == "((5, -0.1), (7, -inf))", "equal ones are shown alike, for logs and digests of answers"
    assert (tuple(found), len(found), found[0], tuple(found[:1])) == (pairs, 2, pairs[0], pairs[:1])
    assert found == pairs
    assert (hash(found), found != ((5, -0.1),)) == (hash(pairs), True)
