"""Prefixes that sequences share while they are still to be computed, against a comparison of all with all."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxgen.cache.block_pool import BlockPool
from jaxgen.cache.prefix_cache import ComingPrefixes, PrefixCache
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence

BLOCK = 2
LAST = (9, 0.0, 0)
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=11)


def sequence_of(arrival: int, tokens: list[int]) -> Sequence:
    request = Request(f"r{arrival}", tuple(tokens), SamplingParams())
    return Sequence(request, eos_token_ids=frozenset(), arrival=arrival, seed=0)


def common(one: list[int], other: list[int]) -> int:
    """Equal first blocks; at least one token of each is left to compute."""
    equal = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return min(equal // BLOCK, (len(one) - 1) // BLOCK, (len(other) - 1) // BLOCK)


@settings(deadline=None)
@example([([0, 0, 0], 1), ([0, 0, 0, 0, 0], 1)], [0, 0, 0, 0, 0])  # the first ends where the second goes on
@given(st.lists(st.tuples(PROMPTS, st.integers(0, 3)), max_size=12), PROMPTS)
def test_a_newcomer_shares_what_the_most_alike_shares(comers: list[tuple[list[int], int]], newcomer: list[int]) -> None:
    coming = ComingPrefixes(PrefixCache(BlockPool(8), BLOCK))
    there: list[Sequence] = []
    for arrival, (tokens, leaves) in enumerate(comers):
        there.append(sequence_of(arrival, tokens))
        coming.join(there[-1])
        if leaves == 0:
            coming.leave(there.pop(arrival % len(there)))
    expected = max([common(newcomer, s.tokens) for s in there], default=0)
    assert coming.num_common(sequence_of(99, newcomer), LAST) == expected
    assert coming.num_common(sequence_of(99, newcomer), (0, 0.0, -1)) == 0  # all are behind it
    for sequence in there:
        coming.leave(sequence)
    assert not coming._at
    assert not coming._depth


def test_what_is_not_shared_costs_one_key() -> None:
    coming = ComingPrefixes(PrefixCache(BlockPool(8), BLOCK))
    alone = sequence_of(0, list(range(100)))
    coming.join(alone)
    coming.num_common(sequence_of(1, [7] * 100), LAST)
    assert len(alone.blocks.keys) == 1
