"""Drafts of what came before: what they are, and how likely they are said to be."""

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.speculation import SpeculationConfig
from jaxgen.speculation.lookup import LookupDrafter

CONFIG = SpeculationConfig(method="ngram", num_speculative_tokens=4, prompt_lookup_min=2, prompt_lookup_max=3)


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


def test_the_chance_follows_what_was_right_and_is_tried_again_after_a_while() -> None:
    drafter, sequence = LookupDrafter(CONFIG), sequence_of(1, 2, 3, 1, 2)
    first = drafter.draft(sequence, 9).chance
    for _ in range(5):
        drafter.checked(sequence, 4, 4)
    good = drafter.draft(sequence, 9).chance
    for _ in range(20):
        drafter.checked(sequence, 4, 0)
    bad = drafter.draft(sequence, 9).chance
    others = drafter.draft(sequence_of(1, 2, 3, 1, 2), 9).chance
    for _ in range(400):
        again = drafter.draft(sequence, 9).chance
    assert bad < 0.2 < first == 0.5 < 0.8 < good
    assert bad < others < 0.3, "of a new request only what others showed is known"
    assert again > 0.45


def test_an_ended_request_is_forgotten() -> None:
    drafter, sequence = LookupDrafter(CONFIG), sequence_of(1, 2, 3, 1, 2)
    drafter.draft(sequence, 9)
    assert len(drafter._texts) == 1
    del sequence
    assert len(drafter._texts) == 0
