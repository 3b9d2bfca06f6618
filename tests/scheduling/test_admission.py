"""Which blocks a sequence takes when, and who is admitted when not all fit."""

import pytest

from jaxgen.core.sequence import SequenceStatus
from jaxgen.scheduling.admission import ADMISSION_WINDOW, MAX_OVERTAKEN
from tests.support.small_scheduler import TOKEN, add, new_scheduler, run_dry, step


def test_admission_takes_the_blocks_of_the_whole_prompt() -> None:
    scheduler = new_scheduler(token_budget=4, block_size=4)
    sequence = add(scheduler, "a", 18)
    step(scheduler)
    assert sequence.blocks.table == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("prompt", "blocks"), [(3, 1), (4, 1), (5, 2)])
def test_admission_takes_no_more_and_no_fewer_blocks_than_the_prompt_fills(prompt: int, blocks: int) -> None:
    scheduler = new_scheduler(block_size=4)
    sequence = add(scheduler, "a", prompt)
    scheduler.schedule()
    assert len(sequence.blocks.table) == blocks


def test_a_decode_takes_its_next_block_when_it_needs_it() -> None:
    scheduler = new_scheduler(block_size=4)
    sequence = add(scheduler, "a", 3, max_tokens=9)
    held = []
    for _ in range(6):
        step(scheduler)
        held.append(len(sequence.blocks.table))
    assert held == [1, 1, 2, 2, 2, 2]


def test_one_sequence_may_fill_the_whole_pool() -> None:
    scheduler = new_scheduler(num_blocks=4, block_size=4)
    add(scheduler, "a", 10, max_tokens=7)
    run_dry(scheduler)
    assert scheduler.preemptions == 0


def test_a_prompt_that_does_not_fit_does_not_block_those_behind() -> None:
    scheduler = new_scheduler(num_blocks=8)
    add(scheduler, "runs", 12, max_tokens=20)
    step(scheduler)
    add(scheduler, "big", 24)
    add(scheduler, "small", 3)
    assert ("small", 0, 3) in step(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_a_prompt_that_does_not_fit_is_overtaken_a_bounded_number_of_times() -> None:
    scheduler = new_scheduler(num_blocks=8)
    add(scheduler, "runs", 12, max_tokens=18)
    step(scheduler)
    big = add(scheduler, "big", 24)
    behind = [add(scheduler, f"small{i}", 1, max_tokens=1) for i in range(MAX_OVERTAKEN + 5)]
    while big.status is SequenceStatus.WAITING:
        assert step(scheduler)
    overtook = [small for small in behind if small.status is SequenceStatus.FINISHED]
    assert overtook == behind[:MAX_OVERTAKEN]
    assert big.standing.overtaken == 0  # counts anew if it is preempted
    run_dry(scheduler)


def test_the_scan_of_the_waiting_is_bounded() -> None:
    scheduler = new_scheduler(token_budget=16, num_blocks=8)
    add(scheduler, "runs", 12, max_tokens=20)
    step(scheduler)
    for i in range(ADMISSION_WINDOW):
        add(scheduler, f"big{i}", 24)
    add(scheduler, "small", 3)
    assert step(scheduler) == [("runs", 12, 1)]


def test_admission_leaves_a_block_for_each_that_may_grow() -> None:
    scheduler = new_scheduler(num_blocks=3, block_size=4)
    add(scheduler, "a", 4, max_tokens=5)
    add(scheduler, "b", 4, max_tokens=5)
    assert step(scheduler) == [("a", 0, 4)]
    run_dry(scheduler)
    assert scheduler.preemptions == 0


def test_those_that_will_not_grow_need_no_spare_block() -> None:
    scheduler = new_scheduler(num_blocks=3, block_size=4)
    for running, name in enumerate("abc", start=1):
        add(scheduler, name, 1, max_tokens=4)
        step(scheduler)
        assert scheduler.num_running == running


def test_prompts_that_would_lock_fastgen_run() -> None:
    """Chunked prompts that take blocks as they go fill the pool and lock: four of 12 tokens in 8 blocks of 4."""
    scheduler = new_scheduler(token_budget=4, max_num_seqs=4, num_blocks=8, block_size=4)
    sequences = [add(scheduler, name, 12, max_tokens=9) for name in "abcd"]
    for _ in range(200):
        if not scheduler.has_work:
            break
        plan = scheduler.schedule()
        assert plan.chunks
        for sequence in sequences:
            if sequence.status is SequenceStatus.RUNNING:
                assert len(sequence.blocks.table) * 4 >= len(sequence.tokens)
        scheduler.complete(plan, [TOKEN] * plan.num_samples)
    assert [sequence.num_generated for sequence in sequences] == [9, 9, 9, 9]
    assert scheduler.pool.num_free == 8
