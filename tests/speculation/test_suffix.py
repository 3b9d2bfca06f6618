"""Drafts of what mostly followed, in a request's own tokens and in answers that ended."""

from dataclasses import replace

import pytest

from jaxgen.core.sequence import Sequence
from jaxgen.core.speculation import SuffixConfig
from jaxgen.speculation.suffix import SuffixDrafter
from tests.speculation.test_lookup import sequence_of

CONFIG = SuffixConfig(suffix_decoding_max_tree_depth=8)


def answered(drafter: SuffixDrafter, *answer: int, salt: str | None = None) -> None:
    """A request ends with an answer."""
    sequence = with_salt(sequence_of(1), salt)
    sequence.tokens += answer
    drafter.ended(sequence)


def with_salt(sequence: Sequence, salt: str | None) -> Sequence:
    sequence.request = replace(sequence.request, cache_salt=salt)
    return sequence


def test_they_are_what_mostly_followed_and_no_more_than_the_tokens_found() -> None:
    drafter = SuffixDrafter(CONFIG)
    assert drafter.draft(sequence_of(1, 2, 5, 6, 0, 1, 2, 5, 7, 0, 1, 2, 8, 9, 4, 1, 2), 9).tokens == (5, 7)
    for _ in range(2):
        answered(drafter, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    answered(drafter, 0, 2, 3, 4, 5, 6, 8, 8, 8)
    assert drafter.draft(sequence_of(2, 3, 4), 9).tokens == (5, 6, 7)
    assert drafter.draft(sequence_of(2, 3, 4), 2).tokens == (5, 6)
    assert drafter.draft(sequence_of(4, 4, 4, 3), 9).tokens == (4,), "no more than it found"
    assert drafter.draft(sequence_of(0, 2, 3, 4), 9).tokens == (5, 6, 8, 8), "the longer is taken"
    assert drafter.draft(sequence_of(20, 21), 9).tokens == ()


@pytest.mark.parametrize(
    ("changed", "drafts"),
    [
        ({"suffix_decoding_max_spec_factor": 2.0}, (4, 5, 6, 7)),
        ({"suffix_decoding_max_spec_factor": 2.0, "num_speculative_tokens": 3}, (4, 5, 6)),
        ({"suffix_decoding_max_spec_factor": 0.5}, (4,)),
        ({"suffix_decoding_max_spec_factor": 2.0, "suffix_decoding_min_token_prob": 0.7}, (4, 5)),
        ({"suffix_decoding_max_cached_requests": 0}, ()),
    ],
)
def test_each_setting_bounds_them(changed: dict[str, float], drafts: tuple[int, ...]) -> None:
    drafter = SuffixDrafter(SuffixConfig(**changed))  # type: ignore[arg-type]
    for last in (6, 6, 9):
        answered(drafter, 2, 3, 4, 5, last, last + 1, last + 2)
    assert drafter.draft(sequence_of(2, 3), 9).tokens == drafts


def test_an_answer_drafts_for_no_other_salt() -> None:
    drafter = SuffixDrafter(CONFIG)
    answered(drafter, 2, 3, 4, 5, salt="a")
    assert drafter.draft(with_salt(sequence_of(2, 3), "a"), 9).tokens == (4, 5)
    for other in (None, "b"):
        assert drafter.draft(with_salt(sequence_of(2, 3), other), 9).tokens == ()


def test_what_is_right_more_often_is_taken() -> None:
    drafter, sequence = SuffixDrafter(CONFIG), sequence_of(7, 7, 2, 3, 8, 9, 2, 3)
    answered(drafter, 5, 2, 3, 4, 5)
    assert drafter.draft(sequence, 9).tokens == (8, 9)
    drafter.checked(sequence, 2, 0)
    assert drafter.draft(sequence, 9).tokens == (4, 5)
    drafter.checked(sequence, 2, 2)
    assert drafter.draft(sequence, 9).tokens == (4, 5)


def test_a_loop_goes_on() -> None:
    config = replace(CONFIG, suffix_decoding_max_tree_depth=24)
    assert SuffixDrafter(config).draft(sequence_of(*[7, 8, 9] * 4), 7).tokens == (7, 8, 9, 7, 8, 9, 7)
