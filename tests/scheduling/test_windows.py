"""Kinds of cache with windows: every token finds what it attends to, and blocks behind the window are freed."""

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.scheduler import Scheduler
from tests.support.scheduler_world import Device, small_tier
from tests.support.small_scheduler import add, new_scheduler

BLOCK = 4


class Engine:
    """A scheduler with kinds of cache, and a device that checks what each token finds."""

    def __init__(
        self, *windows: int, token_budget: int = 8, prefix_caching: bool = True, spare_blocks: int = 0
    ) -> None:
        self.scheduler = new_scheduler(
            token_budget, prefix_caching=prefix_caching, windows=windows, spare_blocks=spare_blocks
        )
        self.device = Device(BLOCK, windows)
        self._added = 0
        self._behind: tuple[StepPlan, list[int]] | None = None

    def add(self, prompt: int, max_tokens: int = 1) -> Sequence:
        self._added += 1
        return add(self.scheduler, f"r{self._added}", prompt, max_tokens, ignore_eos=True)

    def step(self) -> StepPlan:
        """Plan and run a step while the one before it is in flight."""
        plan = self.scheduler.schedule()
        before, self._behind = self._behind, (plan, self.device.run(plan))
        if before is not None:
            self.scheduler.complete(*before)
        return plan

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()
        self.scheduler.check_idle()


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("windows", [(1,), (2,), (BLOCK,), (BLOCK + 1,), (6,), (2 * BLOCK + 1,), (99,), (9, 3)])
def test_every_token_finds_its_window(windows: tuple[int, ...], prefix_caching: bool) -> None:
    """In pools of the least size: prompts in pieces, decodes next to them, and later ones that begin alike."""
    engine = Engine(*windows, prefix_caching=prefix_caching)
    for prompt in (21, 9, 13, 30):
        engine.add(prompt, max_tokens=12)
        engine.step()
    engine.run()
    engine.add(34)
    engine.run()
    assert [pool.num_free for pool in engine.scheduler.pools] == [pool.num_blocks for pool in engine.scheduler.pools]


def test_a_long_answer_holds_no_more_than_its_window() -> None:
    engine = Engine(6)
    sequence = engine.add(5, max_tokens=50)
    engine.step()
    held = []
    while sequence.row is not None:
        held.append(len(sequence.blocks.windows[0].table) - sequence.blocks.windows[0].num_freed)
        engine.step()
    assert (max(held), engine.scheduler.pool.num_free) == (3, 32)


def test_rows_in_step_need_nearly_all_of_the_least_blocks() -> None:
    """Each holds the last three tokens' blocks, of which one ends there, and begins another."""
    engine = Engine(4, token_budget=4)
    for _ in range(4):
        engine.add(1, max_tokens=20)
    pool = engine.scheduler.pools[1]
    most = 0
    while engine.scheduler.has_work:
        engine.step()
        most = max(most, pool.num_blocks - pool.num_free)
    assert (most, pool.num_blocks) == (4 * 3, 4 * 3 + 1)


def test_a_freed_block_serves_another_sequence_in_the_same_step() -> None:
    engine = Engine(2, prefix_caching=False)
    first = engine.add(4, max_tokens=9)
    engine.step()
    (freed,) = first.blocks.windows[0].table
    second = engine.add(4, max_tokens=9)
    engine.step()  # the first token after the block still attends to its last
    assert second.blocks.windows[0].table[0] != freed
    plan = engine.step()
    assert {chunk.sequence for chunk in plan.chunks} == {first, second}
    assert second.blocks.windows[0].table[1] == freed


def test_a_prefix_needs_the_blocks_of_its_last_window_alone() -> None:
    engine = Engine(6, token_budget=32, spare_blocks=16)
    first = engine.add(25, max_tokens=9)
    engine.step()
    second = engine.add(25)
    (chunk,) = [chunk for chunk in engine.step().chunks if chunk.sequence is second]
    assert (chunk.start, second.blocks.windows[0].num_freed) == (24, 4)
    assert second.blocks.windows[0].table[4:6] == first.blocks.windows[0].table[4:6]
    engine.run()


@pytest.mark.parametrize("lost", [1, 2])
def test_a_prefix_that_one_kind_has_lost_is_computed_again(lost: int) -> None:
    engine = Engine(6, 9, token_budget=32)
    engine.add(25)
    engine.run()
    pool = engine.scheduler.pools[lost]
    pool.release(pool.allocate(pool.num_blocks))
    engine.add(25)
    assert engine.step().chunks[0].start == 0
    engine.run()
    engine.add(25)
    assert engine.step().chunks[0].start == 24
    engine.run()


def test_a_failure_forgets_the_blocks_of_all_kinds() -> None:
    engine = Engine(6)
    engine.add(25, max_tokens=9)
    engine.step()
    engine.scheduler.fail()
    assert [(pool.num_cached, pool.num_free == pool.num_blocks) for pool in engine.scheduler.pools] == [(0, True)] * 2
    engine.scheduler.check_idle()


def test_blocks_of_a_window_that_nobody_gave_back_are_a_leak() -> None:
    scheduler = new_scheduler(windows=(6,))
    scheduler.pools[1].allocate(1)
    with pytest.raises(RuntimeError, match="holds rows, blocks"):
        scheduler.check_idle()


def test_host_memory_keeps_all_kinds() -> None:
    cache = CacheConfig(BLOCK, 32, window_blocks=(99,), windows=(6,))
    with pytest.raises(ValueError, match=r"host memory must keep blocks of windows \(6,\), not of 0"):
        Scheduler(SchedulerConfig(8, 4, max_model_len=64), cache, tier=small_tier(4, BLOCK, 1, 0, 0))
