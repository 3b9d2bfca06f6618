"""Which blocks go to the host, when, and what a plan is told."""

import pytest

from jaxgen.cache.block_pool import BlockPool
from jaxgen.cache.prefix_cache import PrefixCache
from jaxgen.cache.restorer import Restorer
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Save
from jaxgen.offload.tiers.host_store import HostBlock, HostStore
from jaxgen.offload.tiers.offload_tier import KindPlan, OffloadTier, Split

BLOCK = 4


def key(n: int) -> bytes:
    return bytes([n])


def make_tier(host_blocks: int = 10, most_saving: int = 2, recompute: int = 0, project: int = 0) -> OffloadTier:
    store: HostStore[HostBlock] = HostStore(host_blocks)

    def planner(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
        return Split(min(recompute, blocks), 1.5, project if inputs_known else 0)

    return OffloadTier(store, block_size=BLOCK, kinds=[KindPlan(1, most_saving)], planner=planner)


def sequence_with(blocks: int) -> Sequence:
    sequence = Sequence(
        Request("r", tuple(range(blocks * BLOCK)), SamplingParams(max_tokens=1)),
        eos_token_ids=frozenset(),
        arrival=0,
        seed=0,
    )
    sequence.blocks.table += range(100, 100 + blocks)
    return sequence


def held(tier: OffloadTier, *numbers: int, inputs: bool = False) -> list[bytes]:
    for n in numbers:
        tier.store.reserve(key(n))
        tier.saved(key(n), HostBlock(f"kv {n}", f"inputs {n}" if inputs else None))
    return [key(n) for n in numbers]


def test_cached_blocks_go_oldest_first_a_few_at_a_time() -> None:
    tier = make_tier()
    for n in range(4):
        tier.cached(n, key(n))
    assert tier.take_saves() == (Save(0, key(0)), Save(1, key(1)))
    assert tier.take_saves() == (), "two are under way"
    tier.saved(key(0), HostBlock("kv"))
    assert tier.take_saves() == (Save(2, key(2)),)
    assert tier.has_saves


def test_an_evicted_block_goes_at_once_if_it_can() -> None:
    tier = make_tier(most_saving=1)
    for n in range(3):
        tier.cached(n, key(n))
    tier.evicted(2, key(2))
    tier.evicted(1, key(1))
    assert tier.take_saves() == (Save(2, key(2)),)
    assert tier.counters.lost_blocks == 1


def test_what_the_host_has_does_not_go_again() -> None:
    tier = make_tier()
    held(tier, 1)
    tier.cached(5, key(1))
    tier.evicted(5, key(1))
    assert tier.take_saves() == ()
    assert (tier.counters.lost_blocks, tier.has_saves) == (0, False)


def test_a_block_waits_while_every_place_is_pinned() -> None:
    tier = make_tier(host_blocks=1)
    tier.store.pin(held(tier, 7))
    for n in range(3):
        tier.cached(n, key(n))
    for _ in range(3):
        assert tier.take_saves() == ()
    tier.evicted(1, key(1))
    assert tier.counters.lost_blocks == 1, "it waited, and nothing was left to wait for"
    tier.store.unpin([key(7)])
    assert tier.take_saves() == (Save(0, key(0)),)
    assert tier.has_saves
    tier.saved(key(0), HostBlock("kv"))
    assert tier.take_saves() == (Save(2, key(2)),)
    assert tier.counters.lost_blocks == 1


def test_without_memory_on_the_host_each_evicted_block_is_lost() -> None:
    tier = make_tier()
    tier.cached(0, key(0))
    tier.close()
    tier.cached(1, key(1))
    assert (tier.take_saves(), tier.has_saves) == ((), False)
    for n in range(2):
        tier.evicted(n, key(n))
    assert (tier.take_saves(), tier.counters.lost_blocks) == ((), 2)


def test_a_tier_that_could_save_nothing_is_no_tier() -> None:
    with pytest.raises(ValueError, match=r"^most_saving must be 1 or more, not 0$"):
        make_tier(most_saving=0)


def test_nothing_goes_when_closed_or_forgotten() -> None:
    tier = make_tier()
    tier.cached(0, key(0))
    tier.forgotten()
    assert tier.take_saves() == ()
    tier.close()
    tier.cached(0, key(0))
    assert tier.take_saves() == ()


def test_after_a_failure_no_copy_is_under_way() -> None:
    tier = make_tier()
    for n in range(3):
        tier.cached(n, key(n))
    tier.take_saves()
    restore = tier.plan_restore(sequence_with(7), 0, held(tier, 7, 8), free_tokens=8, num_waiting=0)
    assert restore is not None
    tier.forgotten()
    tier.fail()
    assert (tier.has_saves, tier.counters.failed_saves, tier.take_saves()) == (False, 2, ())
    assert all(tier.store.reserve(key(10 + n)) for n in range(10)), "nothing is pinned"


def test_a_failed_copy_leaves_its_place() -> None:
    tier = make_tier()
    tier.cached(0, key(0))
    tier.take_saves()
    tier.saved(key(0), None)
    assert (tier.store.num_reserved, tier.counters.failed_saves) == (0, 1)


@pytest.mark.parametrize("recompute", [0, 2])
def test_a_restore_begins_behind_what_is_computed(recompute: int) -> None:
    tier, sequence = make_tier(recompute=recompute), sequence_with(7)
    keys = held(tier, 1, 2, 3, 4)
    restore = tier.plan_restore(sequence, 2, keys, free_tokens=8, num_waiting=0)
    assert restore is not None
    assert restore.blocks == tuple(range(102 + recompute, 106))
    assert restore.pieces == tuple(HostBlock(f"kv {n}") for n in range(1 + recompute, 5))
    assert (restore.start, restore.end) == ((2 + recompute) * BLOCK, 6 * BLOCK)
    counters = tier.counters
    assert counters.host_hit_tokens == counters.planned_recompute_tokens + counters.planned_restore_tokens == 16
    tier.release(restore, whole=True, seconds=2.0)
    counters = tier.counters
    assert (counters.restored_tokens, counters.predicted_seconds, counters.restore_seconds) == (
        (4 - recompute) * BLOCK,
        1.5,
        2.0,
    )


def test_what_is_computed_whole_is_not_restored() -> None:
    tier = make_tier(recompute=9)
    assert tier.plan_restore(sequence_with(7), 0, held(tier, 1, 2), free_tokens=8, num_waiting=0) is None
    assert tier.plan_restore(sequence_with(7), 0, [], free_tokens=8, num_waiting=0) is None
    assert (tier.counters.recomputes, tier.counters.restores) == (1, 0)


def test_a_cancelled_restore_counts_as_nothing() -> None:
    tier = make_tier()
    restore = tier.plan_restore(sequence_with(7), 0, held(tier, 1, 2), free_tokens=8, num_waiting=0)
    assert restore is not None
    restore.cancelled = True
    tier.release(restore, whole=False)
    assert (tier.counters.restored_tokens, tier.counters.failed_restores) == (0, 0)
    assert tier.store.reserve(key(9)), "nothing is pinned"


def saved_with_inputs(tier: OffloadTier, *blocks: int) -> list[bool]:
    """Of each block, which nobody uses any more, whether its inputs go to the host with it."""
    found = []
    for block in blocks:
        tier.cached(block, key(100 + block))
        (save,) = tier.take_saves()
        found.append(save.has_inputs)
        tier.saved(save.key, None)
    return found


def test_inputs_come_before_kv_where_the_host_has_all_of_them() -> None:
    tier = make_tier(recompute=1, project=2)
    keys = held(tier, 1, 2, 3, 4, 5, inputs=True)
    restore = tier.plan_restore(sequence_with(7), 1, keys, free_tokens=8, num_waiting=0)
    assert restore is not None
    assert (restore.num_projected, restore.blocks, restore.start) == (2, (102, 103, 104, 105), 2 * BLOCK)
    counters = tier.counters
    planned = counters.planned_recompute_tokens, counters.planned_project_tokens, counters.planned_restore_tokens
    assert planned == (BLOCK, 2 * BLOCK, 2 * BLOCK)
    tier.release(restore, whole=True)
    counters = tier.counters
    assert (counters.projected_tokens, counters.restored_tokens) == (2 * BLOCK, 2 * BLOCK)
    other = tier.plan_restore(sequence_with(7), 0, [*keys, *held(tier, 6)], free_tokens=8, num_waiting=0)
    assert other is not None
    assert other.num_projected == 0, "one came without"


def test_a_block_that_came_as_kv_is_saved_without_inputs() -> None:
    tier = make_tier(recompute=1, project=1)
    restore = tier.plan_restore(sequence_with(4), 0, held(tier, 1, 2, 3, inputs=True), free_tokens=8, num_waiting=0)
    assert restore is not None
    tier.release(restore, whole=True)
    assert saved_with_inputs(tier, 100, 101, 102, 103) == [True, True, False, True]


def test_a_block_has_inputs_again_when_it_is_computed() -> None:
    """Evicted, given to another sequence that computes it, computed since its copy failed, or with the device lost."""
    tier = make_tier()
    keys = held(tier, 1, 2, 3, inputs=True)
    restore = tier.plan_restore(sequence_with(4), 0, keys, free_tokens=8, num_waiting=0)
    assert restore is not None
    tier.release(restore, whole=True)
    tier.evicted(100, key(1))
    assert saved_with_inputs(tier, 100, 101, 102) == [True, False, False]
    assert tier.plan_restore(sequence_with(2), 0, [], free_tokens=8, num_waiting=0) is None
    assert saved_with_inputs(tier, 101, 102) == [True, False]
    tier.forgotten()
    assert saved_with_inputs(tier, 102) == [True]
    failing = tier.plan_restore(sequence_with(4), 0, keys, free_tokens=8, num_waiting=0)
    assert failing is not None
    tier.release(failing, whole=False)
    assert saved_with_inputs(tier, 100, 101, 102) == [True, True, True]


def test_half_of_what_one_wants_is_worth_waiting_for() -> None:
    tier, prefixes = make_tier(), PrefixCache(BlockPool(10), BLOCK)
    restorer, first = Restorer(tier, prefixes, None), sequence_with(3)  # two blocks: a token is left to compute
    for found in prefixes.keys_from(sequence_with(6), 0):
        tier.store.reserve(found)
        tier.saved(found, HostBlock("kv"))
    hit = restorer.look_up(first)
    restorer.keep(first, hit)
    restorer.begin(first, hit, free_tokens=8, num_waiting=2)
    assert first.blocks.restore is not None
    assert restorer.waits_for_another(sequence_with(5))
    assert not restorer.waits_for_another(sequence_with(6))
