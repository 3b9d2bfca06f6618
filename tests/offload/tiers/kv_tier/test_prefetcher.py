"""What is fetched for sequences that wait, and how long they wait for it: by a clock and rates that a test sets."""

import threading
from collections.abc import Callable

import pytest

from jaxgen.cache.host_tier import state_key, window_key
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Fetch, Sequence, SequenceStatus
from jaxgen.offload.tiers.host_store import HostBlock, HostStore
from jaxgen.offload.tiers.kv_tier import kv_tier
from jaxgen.offload.tiers.kv_tier.prefetcher import COMPARE_ONE_IN, MAX_WAIT, PROBE_SECONDS, FetchPlan, Prefetcher
from tests.offload.tiers.kv_tier.fakes import SIZE, Clock, MemoryStore, answered, block, key, state, tier_of, written


class World:
    """A prefetcher over a store with the blocks 0 to 9, two of which are read together."""

    def __init__(self, host_blocks: int = 40, plan: Callable[..., FetchPlan] | None = None) -> None:
        self.store, self.host = MemoryStore(), HostStore[HostBlock](host_blocks)
        self.clock, self.tier = Clock(), tier_of(self.store)
        written(self.tier, *range(10))
        self.plan = plan or (lambda *_: FetchPlan(pays=True, max_wait=2.0))
        self.prefetcher = Prefetcher(
            self.tier,
            self.host,
            lambda *args: self.plan(*args),
            batch=2,
            compares=True,
            clock=self.clock,
            places=(1, 3),
            state_places=2,
        )

    def fetch(self, *numbers: int) -> Fetch:
        fetch = self.ask(*numbers)
        assert fetch is not None
        return fetch

    def ask(self, *numbers: int, states: tuple[int, ...] = ()) -> Fetch | None:
        sequence = Sequence(
            Request("r", (1, 2, 3), SamplingParams(max_tokens=1)), eos_token_ids=frozenset(), arrival=0, seed=0
        )
        wanted = [state_key(key(n)) for n in states]
        return self.prefetcher.fetch(sequence, 0, [key(n) for n in numbers], 0, wanted)

    def keep_states(self, *numbers: int) -> None:
        for n in numbers:
            self.tier.keep(state_key(key(n)), state(n))
        written(self.tier)

    @property
    def held_states(self) -> list[int]:
        return [n for n in range(50) if self.host.holds(state_key(key(n)))]

    def settle(self) -> None:
        for _ in range(10):
            answered(self.tier)

    @property
    def held(self) -> list[int]:
        return [n for n in range(50) if self.host.holds(key(n))]


def test_what_the_tier_has_is_in_host_memory_a_few_at_a_time() -> None:
    world = World()
    fetch = world.fetch(0, 1, 2, 3, 4, 40, 5)
    assert world.prefetcher.may_wait(fetch)
    answered(world.tier)  # looked up
    answered(world.tier)
    assert world.held == [0, 1]
    world.settle()
    assert world.held == [0, 1, 2, 3, 4]
    assert world.host[key(3)] == block(3)
    assert (fetch.ended, world.prefetcher.busy, world.prefetcher.may_wait(fetch)) == (True, False, False)
    assert (world.tier.stats.hit_blocks, world.tier.stats.missed_blocks) == (5, 2)


def test_nothing_is_asked_that_would_not_pay_but_a_probe() -> None:
    world = World(plan=lambda blocks, *_: FetchPlan(pays=False, max_wait=9.0))
    probe = world.fetch(0, 1, 2)
    assert not world.prefetcher.may_wait(probe)
    world.settle()
    assert world.held == [0]
    assert world.fetch(1, 2).ended
    world.clock.now += PROBE_SECONDS
    assert not world.fetch(1, 2).ended
    world.settle()
    assert world.held == [0, 1]
    assert world.tier.stats.timeouts == 0


def test_what_is_found_is_read_only_if_it_pays_too() -> None:
    world = World(plan=lambda blocks, *_: FetchPlan(pays=blocks > 2, max_wait=9.0))
    fetch = world.fetch(0, 1, 40)
    world.settle()
    assert (fetch.ended, world.held) == (True, [])


def test_the_planner_is_told_what_comes_before() -> None:
    told: list[tuple[int, ...]] = []

    def plan(*args: int) -> FetchPlan:
        told.append(args)
        return FetchPlan(pays=True, max_wait=1.0)

    world = World(plan=plan)
    world.store.gate.clear()
    world.fetch(0, 1, 2)
    world.fetch(5, 6)
    assert told == [(3, 0, 0, 0), (2, 0, 3, 0)]
    world.store.gate.set()
    world.settle()
    assert world.held == [0, 1, 2, 5, 6]


def test_a_slow_tier_costs_one_timeout_until_it_answers() -> None:
    world = World()
    world.store.gate.clear()
    fetch, other = world.fetch(0, 1, 2, 3), world.fetch(6, 7)
    assert world.prefetcher.may_wait(fetch)
    world.clock.now += 1.9
    assert world.prefetcher.may_wait(fetch)
    assert world.prefetcher.may_wait(other), "from now on"
    world.clock.now += 0.2
    assert not world.prefetcher.may_wait(fetch)
    assert not world.prefetcher.may_wait(other)
    assert world.fetch(8, 9).ended
    assert world.tier.stats.timeouts == 1
    world.store.gate.set()
    world.settle()
    assert (fetch.ended, world.prefetcher.busy) == (True, False)
    assert world.prefetcher.may_wait(world.fetch(8, 9)), "it has answered"
    world.settle()


def test_a_late_answer_that_came_while_the_engine_was_idle_is_noted() -> None:
    world = World()
    world.store.gate.clear()
    late = world.fetch(0, 1)
    assert world.prefetcher.may_wait(late)
    world.clock.now += 3.0
    assert not world.prefetcher.may_wait(late)
    done = threading.Event()
    world.tier._reader.submit(done.set)
    world.store.gate.set()
    assert done.wait(60)
    assert not world.fetch(8, 9).ended
    world.settle()
    assert world.held == [8, 9]


def test_nobody_waits_longer_than_the_most() -> None:
    world = World(plan=lambda *_: FetchPlan(pays=True))
    world.store.gate.clear()
    fetch = world.fetch(0)
    assert world.prefetcher.may_wait(fetch)
    world.clock.now += MAX_WAIT
    assert not world.prefetcher.may_wait(fetch)
    world.store.gate.set()


def test_what_arrived_before_the_timeout_is_kept() -> None:
    world = World()
    fetch = world.fetch(0, 1, 2, 3)
    world.prefetcher.may_wait(fetch)
    answered(world.tier)
    world.clock.now += 3.0
    assert not world.prefetcher.may_wait(fetch)
    world.settle()
    assert (fetch.ended, world.held) == (True, [0, 1]), "the read under way, and no other"


def test_sequences_that_begin_alike_share_a_fetch() -> None:
    world = World()
    fetch = world.fetch(0, 1, 2)
    assert world.fetch(0, 1, 3) is fetch
    world.settle()
    assert world.fetch(3) is not fetch


def test_half_of_host_memory_is_for_those_that_wait() -> None:
    world = World(host_blocks=8)
    first = world.fetch(*range(6))
    assert first.keys == [key(n) for n in range(4)]
    assert world.ask(7) is None
    world.settle()
    assert world.ask(7) is None, "they are there, and it waits"
    first.sequence.status = SequenceStatus.RUNNING
    assert world.fetch(7).keys == [key(7)]
    world.settle()


def test_nothing_more_is_read_for_a_sequence_that_is_gone() -> None:
    world = World()
    fetch = world.fetch(0, 1, 2, 3)
    fetch.sequence.status = SequenceStatus.FINISHED
    world.settle()
    assert (fetch.ended, world.held) == (True, [])


@pytest.mark.parametrize("broken", ["look up", "read"])
def test_an_error_ends_the_wait(broken: str) -> None:
    world = World()
    fetch = world.fetch(0, 1, 2)
    if broken == "read":
        answered(world.tier)
    world.store.error = OSError(116, "Stale file handle")
    world.settle()
    assert (fetch.ended, world.prefetcher.may_wait(fetch)) == (True, False)
    assert world.fetch(5).ended


def test_full_host_memory_ends_a_fetch() -> None:
    world = World(host_blocks=4)
    for n in range(20, 23):
        world.host.reserve(key(n))
    fetch = world.fetch(0, 1)
    world.settle()
    assert (fetch.ended, world.held) == (True, [0])


def test_of_one_fetch_in_many_the_last_block_is_computed_and_compared() -> None:
    world = World(host_blocks=10**6)
    for _ in range(COMPARE_ONE_IN):
        fetch = world.fetch(0, 1, 2)
        world.settle()
    assert fetch.keys == [key(0), key(1)]
    tier = world.tier
    tier.keep(key(2), HostBlock(b"computed"))
    written(tier, 2)
    assert (tier.stats.compared_blocks, tier.stats.differing_blocks) == (1, 1)


def test_an_answer_that_could_not_be_passed_on_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while another request is accepted, which then polls, is not the failure of all."""
    world = World()
    fetch = world.fetch(0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(world.prefetcher, "_planner", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answered(world.tier)
    world.settle()
    assert (fetch.ended, world.held) == (True, [0, 1])


def test_after_a_failure_no_fetch_is_under_way_and_late_answers_are_dropped() -> None:
    world = World()
    fetch, other = world.fetch(0, 1, 2, 3, 4, 5), world.fetch(6, 7)
    answered(world.tier)  # looked up
    answered(world.tier)
    assert world.held[:2] == [0, 1]
    world.prefetcher.fail()
    world.host.end_copies()
    assert (fetch.ended, other.ended, world.prefetcher.busy) == (True, True, False)
    world.settle()
    held = world.held
    assert 5 not in held, "it was to be read after others"
    world.fetch(5)
    world.settle()
    assert world.held == sorted({*held, 5})
    assert all(world.host.reserve(key(100 + n)) for n in range(40)), "nothing is pinned"


def test_the_last_snapshot_comes_before_the_blocks_up_to_it() -> None:
    world = World()
    world.keep_states(1, 3, 8, 30)
    fetch = world.ask(2, 3, 4, 5, 40, 8, states=(0, 1, 2, 3, 4, 5, 40, 8))
    answered(world.tier)  # looked up
    assert fetch is not None
    assert fetch.keys == [state_key(key(3)), key(2), key(3)], "8 is behind one that is not there"
    world.settle()
    assert (world.held, world.held_states) == ([2, 3], [3])
    assert world.host[state_key(key(3))] == state(3)
    assert (world.host.num_filled, world.tier.stats.hit_blocks, world.tier.stats.missed_blocks) == (4, 2, 4)


def test_a_snapshot_comes_alone_and_blocks_do_not_without_one() -> None:
    world = World()
    world.keep_states(1)
    world.ask(states=(0, 1, 2))
    world.ask(5, 6, states=(5, 6))
    world.settle()
    assert (world.held, world.held_states, world.prefetcher.busy) == ([], [1], False)


def test_blocks_do_not_come_behind_a_damaged_snapshot() -> None:
    world = World()
    world.tier.keep(state_key(key(1)), block(1))  # as if it were a block
    written(world.tier)
    world.ask(0, 1, states=(0, 1))
    world.settle()
    assert (world.held, world.held_states, world.tier.stats.damaged_blocks) == ([], [], 1)


@pytest.mark.parametrize("whole", [True, False])
def test_the_last_blocks_of_windows_come_before_the_blocks_up_to_them_or_nothing_does(whole: bool) -> None:
    """The tier has three of four blocks, and the windows at their end or not; a window's block takes three places."""
    world, keys = World(), [bytes([n]) * 16 for n in range(4)]
    at_end = [window_key(keys[1], 1), window_key(keys[2], 1)]
    for kept in [*keys[:3], at_end[0], *at_end[1:][: int(whole)]]:
        world.tier.keep(kept, block(0))
    written(world.tier)
    sequence = world.fetch(0).sequence
    ends: list[int] = []

    def needed(count: int) -> list[bytes]:
        ends.append(count)
        return at_end

    fetch = world.prefetcher.fetch(sequence, 0, keys, 0, (), needed)
    world.settle()
    assert fetch is not None
    assert ends[-1] == 3
    assert fetch.keys == ([*at_end, *keys[:3]] if whole else at_end[:1])
    assert [found for found in (*keys, *at_end) if world.host.holds(found)] == (
        [*keys[:3], *at_end] if whole else at_end[:1]
    )
    assert world.host.num_filled == 1 + (3 + 2 * 3 if whole else 3)


def test_a_snapshot_takes_its_places_of_the_half_for_those_that_wait() -> None:
    world = World(host_blocks=8)
    world.keep_states(1, 9)
    fetch = world.ask(*range(10), states=tuple(range(10)))
    assert fetch is not None
    assert (len(fetch.keys), len(fetch.states)) == (2, 2)
    assert world.ask(20, states=(20,)) is None


def test_few_snapshots_wait_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_tier, "MOST_WRITTEN_BYTES", 16 * SIZE)
    world = World()
    world.store.gate.clear()
    for n in range(12):
        world.tier.keep(state_key(key(n)), state(n))
    dropped = world.tier.stats.dropped_writes
    assert dropped in (3, 4), "eight wait, and one may be under way"
    world.store.gate.set()
    written(world.tier)
    world.keep_states(20)
    assert world.tier.stats.dropped_writes == dropped
