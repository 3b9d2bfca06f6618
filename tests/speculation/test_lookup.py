"""Drafts of what came before: what they are, and how likely they are said to be."""

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.speculation import NgramConfig
from jaxgen.speculation.lookup import LookupDrafter

CONFIG = NgramConfig(num_speculative_tokens=4, prompt_lookup_min=2, prompt_lookup_max=3)


def sequence_of(*tokens: int) -> Sequence:
    request = Request("r", tokens, SamplingParams(max_tokens=60))
    return Sequence(request, eos_token_ids=frozenset(), arrival=0, seed=0)


def test_they_are_what_followed_at_the_last_place() -> None:
    drafter = LookupDrafter(CONFIG)
    assert drafter.draft(sequence_of(1, 2, 5, 6, 7, 1, 2, 8, 9, 9, 3, 1, 2), 9).tokens == (8, 9, 9, 3)
    assert drafter.draft(sequence_of(1, 2, 5, 6, 7, 1, 2), 2).tokens == (5, 6)
    assert drafter.draft(sequence_of(1, 2, 5, 6, 2), 9).tokens == (), "one token is too few"


def test_tokens_that_come_are_looked_up_too() -> None:
    drafter, sequence = LookupDrafter(CONFIG), sequence_of(1, 2, 3)
    assert drafter.draft(sequence, 9).tokens == ()
    sequence.tokens += [4, 1, 2]
    assert drafter.draft(sequence, 9).tokens == (3, 4, 1, 2)


def test_an_ended_request_is_forgotten() -> None:
    drafter, sequence = LookupDrafter(CONFIG), sequence_of(1, 2, 3, 1, 2)
    drafter.draft(sequence, 9)
    assert len(drafter._texts) == len(drafter._chances._requests) == 1
    del sequence
    assert len(drafter._texts) == len(drafter._chances._requests) == 0
