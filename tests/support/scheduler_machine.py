"""Any order of arrivals, plans, results, aborts and failures, on pools so small that preemption is common.

The device is a dict from slot to what was last written there: the salt and all tokens up to the one whose K and V it
holds. It runs a plan when it is made, from what the plan and the admitted sequences said then, and knows the tokens it
sampled before the host does. The next token is a hash of what a sequence's block table leads to. So a block with two
writers, a hit on other tokens or another salt, a prompt not computed anew, or a token computed twice shows.

There may be a host store behind the pool: what a plan saves is read before the plan runs, what it restores is written
at any time after, unless it was cancelled, and any copy may take long or fail. Blocks have layer inputs too: in each
slot those last computed or projected there, which a copy of K and V does not bring; they are saved only if its own.
"""

from collections import Counter
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from jaxgen.cache.window_manager import blocks_for
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import SequenceStatus
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.drafts import DraftPlanner
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.scheduler_book import Book
from tests.support.scheduler_caller import Caller
from tests.support.scheduler_invariants import INVARIANTS, every_block_has_its_owners
from tests.support.scheduler_world import ARRIVALS, Arrival, Device, Guesser, Host, small_tier
from tests.support.service_world import policy_with


class SchedulerMachine(RuleBasedStateMachine):
    """A caller, a device, and a book of who should hold what."""

    seen: ClassVar[Counter[str]] = Counter()
    host_blocks: ClassVar[tuple[int, ...]] = (0,)
    windows: ClassVar[tuple[tuple[int, ...], ...]] = ((),)
    """Windows of the further kinds of cache, of which one is drawn."""
    step_time: ClassVar[StepTimeModel | None] = None
    plain: ClassVar[bool] = True
    has_states: ClassVar[bool] = False
    has_drafts: ClassVar[bool] = False

    @initialize(
        block_size=st.integers(1, 2) | st.integers(1, 4),
        num_blocks=st.integers(6, 12) | st.integers(1, 12),
        token_budget=st.integers(4, 16) | st.integers(1, 16),
        rows=st.integers(3, 6) | st.integers(1, 6),
        extra_len=st.integers(-2, 2),
        max_overtaken=st.integers(0, 3),
        prefix_caching=st.sampled_from([True, True, True, False]),
        background_tokens=st.sampled_from([None, 0, 0, 1, 3]),
        narrow=st.booleans(),
        copies_blocks=st.sampled_from([True, True, False]),
        host_size=st.integers(0, 3),
        most_saving=st.integers(1, 4),
        recomputed=st.integers(0, 2),
        projected=st.integers(0, 3),
        fails_every=st.integers(2, 4),
        num_snapshots=st.integers(0, 4) | st.integers(4, 12),
        window_choice=st.integers(0, 99),
        spare_blocks=st.integers(0, 4),
        window_rows=st.integers(0, 3),
        wrong_every=st.sampled_from([1, 2, 3, 9, 9]),
    )
    def start(
        self,
        block_size: int,
        num_blocks: int,
        token_budget: int,
        rows: int,
        extra_len: int,
        max_overtaken: int,
        prefix_caching: bool,
        background_tokens: int | None,
        narrow: bool,
        copies_blocks: bool,
        host_size: int,
        most_saving: int,
        recomputed: int,
        projected: int,
        fails_every: int,
        window_choice: int = 0,
        spare_blocks: int = 0,
        window_rows: int = 0,
        num_snapshots: int = 0,
        wrong_every: int = 1,
    ) -> None:
        if self.has_drafts:
            block_size *= 2  # drafts stay in the block of their decode
        # A sequence's last token takes no slot; a model longer than the cache makes refusals.
        longest = max(block_size * num_blocks + 1 + extra_len, 2)
        rows = min(rows, token_budget)
        config = SchedulerConfig(token_budget, rows, longest, prefix_caching, background_tokens=background_tokens)
        windows = self.windows[window_choice % len(self.windows)]
        window_blocks = [
            blocks_for(1 + window_rows % rows, window, block_size, config) + spare_blocks for window in windows
        ]
        snapshots = num_snapshots if self.has_states else None
        cache = CacheConfig(
            block_size, num_blocks, window_blocks=tuple(window_blocks), windows=windows, num_snapshots=snapshots
        )
        copies_blocks = copies_blocks and not windows
        device = Device(block_size, windows, has_states=self.has_states)
        host: Host | None = None
        if host_blocks := self.host_blocks[host_size % len(self.host_blocks)]:
            places = 1 + spare_blocks % 3 if self.has_states else 0
            of_windows = tuple([1 + (spare_blocks + number) % 3 for number in range(len(windows))])
            behind = small_tier(host_blocks, block_size, most_saving, recomputed, projected, places, of_windows)
            host = Host(behind, device)
        tier = None if host is None else host.tier
        scheduler = Scheduler(
            config,
            cache,
            policy=policy_with(self.step_time),
            max_overtaken=max_overtaken,
            tier=tier,
            narrow=narrow,
            copies_blocks=copies_blocks,
            drafts=DraftPlanner(Guesser(wrong_every), config, block_size) if self.has_drafts else None,
        )
        self.book = Book(
            scheduler, cache, config, max_overtaken, narrow, copies_blocks, device, host, self.plain, self.seen
        )
        self.caller = Caller(self.book, fails_every)

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=4))
    def add(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self.caller.add(self._adapt(arrival))

    @rule(tokens=st.none() | st.integers(1, 9))
    def fill(self, tokens: int | None) -> None:
        self.book.scheduler.limit_prompts(tokens)
        self.book.most_prompt_tokens = tokens

    @precondition(lambda self: self.book.live)
    @rule(
        steps=st.integers(1, 8),
        arrival=st.none() | ARRIVALS,
        behind=st.sampled_from([1, 1, 1, 0]),
        aborts=st.sampled_from([None, SequenceStatus.ENDING, SequenceStatus.RUNNING]),
        fails=st.sampled_from([False, False, True]),
        lands=st.booleans(),
    )
    def step(
        self,
        steps: int,
        arrival: Arrival | None,
        behind: int,
        aborts: SequenceStatus | None,
        fails: bool,
        lands: bool = False,
    ) -> None:
        """Plans and completes, ``behind`` plans staying in flight while there is more to plan.

        With a plan just made, the first sequence that is ``aborts`` is aborted, and the device ``fails`` as soon as a
        sequence waits with a token pending. In each round the oldest restore ``lands``; every so many fail.
        """
        for _ in range(steps):
            if self.book.host and self.book.host.restores and lands:
                self.caller.land_restore()
            while len(self.book.in_flight) > self._most_ahead:
                self.caller.complete()
            plan = self.caller.schedule()
            if victims := [name for name, sequence in self.book.live.items() if sequence.status is aborts]:
                self.caller.abort(min(victims, key=lambda name: self.book.live[name].blocks.restore is None))
                aborts = None
            if fails and any(sequence.num_pending for sequence in self.book.waiting()):
                self.caller.fail()
                return
            while len(self.book.in_flight) > (min(behind, self._most_ahead) if plan.chunks else 0):
                self.caller.complete()
        if arrival is not None:
            self.caller.add(self._adapt(arrival))

    @rule(seconds=st.sampled_from([0.01, 1.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.book.now += seconds

    @precondition(lambda self: len(self.book.in_flight) <= self._most_ahead)
    @rule()
    def schedule(self) -> None:
        self.caller.schedule()

    @precondition(lambda self: self.book.in_flight)
    @rule()
    def complete(self) -> None:
        self.caller.complete()

    @precondition(lambda self: self.book.host and self.book.host.saves)
    @rule(whole=st.sampled_from([True, True, True, False]))
    def save_lands(self, whole: bool) -> None:
        self.caller.land_save(whole=whole)

    @precondition(lambda self: self.book.host and len(self.book.host.tier.store) > 0)
    @rule()
    def host_forgets(self) -> None:
        """All but what is being copied, as others' blocks would make it."""
        assert self.book.host
        while self.book.host.tier.store._evict():
            pass

    @precondition(lambda self: self.book.host and self.book.host.restores)
    @rule()
    def restore_lands(self) -> None:
        self.caller.land_restore()

    @precondition(lambda self: self.book.live)
    @rule(pick=st.integers(0, 99))
    def abort(self, pick: int) -> None:
        self.caller.abort(list(self.book.live)[pick % len(self.book.live)])

    @precondition(lambda self: self.book.restoring())
    @rule()
    def abort_while_blocks_come(self) -> None:
        self.caller.abort(self.book.restoring()[0])

    @precondition(lambda self: self.book.live)
    @rule(rarely=st.integers(0, 3))
    def fail(self, rarely: int) -> None:
        if rarely == 0:
            self.caller.fail()

    def teardown(self) -> None:
        """When nobody comes any more, everything ends, and within a bound."""
        if not hasattr(self, "book"):
            return  # the machine was stopped before it began
        # The first of all is admitted when those running now and those that may still overtake it have ended, if not
        # before; the first running advances in every step. Then the same again for the next.
        turns = self.book.config.max_num_seqs + self.book.max_overtaken + 1
        # A token may take two steps of its own: its own, and one in which its sequence waits for it.
        bound = 2 * len(self.book.live) * turns * self.book.config.max_model_len + 2
        for _ in range(bound):
            if not self.book.live:
                break
            if self.caller.arrivals % 3 == 0 and (restoring := self.book.restoring()):
                self.caller.abort(restoring[0])
            self.caller.land_all()
            if not self.book.scheduler.num_online:
                self.book.now = max(self.book.now, self.book.held_until)
            self.step(1, None, 1, aborts=None, fails=False)
            every_block_has_its_owners(self.book)
        assert not self.book.live
        assert not self.book.scheduler.has_work
        while self.book.in_flight:  # only what was dropped
            self.caller.complete()
        while self.book.host and self.book.host.tier.has_saves:
            assert self.caller.land_all() or self.book.host.tier.store.num_reserved == 0
            self.book.host.start(self.book.scheduler.schedule())
            if not self.book.host.saves:
                break  # what is left to copy has no place
        self.caller.land_all()
        assert self.book.scheduler.schedule() == StepPlan(())
        assert all(pool.num_free == pool.num_blocks for pool in self.book.scheduler.pools)
        if self.book.host:
            assert self.book.host.tier.store.num_reserved == 0
        self.seen["preemptions"] += self.book.scheduler.preemptions

    @invariant()
    def what_must_hold(self) -> None:
        for holds in INVARIANTS:
            holds(self.book)

    @property
    def _most_ahead(self) -> int:
        """Most plans that may be in flight when another is made."""
        return int(not self.has_drafts)

    def _adapt(self, arrival: Arrival) -> Arrival:
        return arrival
