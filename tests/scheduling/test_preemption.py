"""Who makes room when blocks run out, and how it goes on."""

from jaxgen.core.sequence import Sequence, SequenceStatus
from jaxgen.scheduling.scheduler import Scheduler
from tests.support.small_scheduler import TOKEN, add, new_scheduler, run_dry, step


def three_until_one_is_preempted() -> tuple[Scheduler, list[Sequence]]:
    """Prompts of 4, 7 and 4 tokens, of which the first and the third have grown by a block; 1 of 7 is left."""
    scheduler = new_scheduler(token_budget=15, num_blocks=7, block_size=4)
    sequences = [add(scheduler, name, prompt, max_tokens=12) for name, prompt in [("a", 4), ("b", 7), ("c", 4)]]
    assert step(scheduler) == [("a", 0, 4), ("b", 0, 7), ("c", 0, 4)]
    assert step(scheduler) == [("a", 4, 1), ("b", 7, 1), ("c", 4, 1)]
    assert (scheduler.pool.num_free, scheduler.preemptions) == (1, 0)
    return scheduler, sequences


def test_the_youngest_makes_room() -> None:
    scheduler, (first, second, third) = three_until_one_is_preempted()
    assert step(scheduler) == [("a", 5, 1), ("b", 8, 1), ("c", 5, 1)]
    for _ in range(3):
        assert scheduler.preemptions == 0
        seen = step(scheduler)
    assert scheduler.preemptions == 1
    assert [name for name, _, _ in seen] == ["a", "b"]
    assert [s.status for s in (first, second, third)] == ["running", "running", "waiting"]
    assert (third.num_computed, third.blocks.table, third.row) == (0, [], None)


def test_the_preempted_is_computed_anew_and_goes_on() -> None:
    scheduler, (_, _, third) = three_until_one_is_preempted()
    while scheduler.preemptions == 0:
        step(scheduler)
    known = len(third.tokens)
    assert third.num_generated > 1
    while third.status is SequenceStatus.WAITING:
        plan = scheduler.schedule()
        (*_, chunk) = plan.chunks
        scheduler.complete(plan, list(range(50, 50 + plan.num_samples)))
    assert (chunk.sequence, chunk.start, chunk.length, chunk.samples) == (third, 0, known, True)
    assert third.tokens[-2:] == [TOKEN, 50 + plan.num_samples - 1]
    run_dry(scheduler)
    assert third.num_generated == 12


def test_the_preempted_waits_before_younger_ones() -> None:
    scheduler, (first, second, third) = three_until_one_is_preempted()
    late = add(scheduler, "late", 16)
    while scheduler.preemptions == 0:
        step(scheduler)
    scheduler.abort(first.request_id)
    scheduler.abort(second.request_id)
    assert [name for name, _, _ in step(scheduler)] == ["c"]
    assert (third.status, late.status) == ("running", "waiting")


def test_the_youngest_preempts_itself_when_it_is_the_one_in_want() -> None:
    scheduler = new_scheduler(token_budget=2, max_num_seqs=2, num_blocks=5, block_size=1)
    add(scheduler, "old", 1, max_tokens=5)
    young = add(scheduler, "young", 1, max_tokens=5)
    assert step(scheduler) == [("old", 0, 1), ("young", 0, 1)]
    assert step(scheduler) == [("old", 1, 1), ("young", 1, 1)]
    assert step(scheduler) == [("old", 2, 1)]
    assert (young.status, scheduler.preemptions, scheduler.pool.num_free) == ("waiting", 1, 2)
    run_dry(scheduler)
    assert young.num_generated == 5


def test_a_step_that_preempts_admits_nobody() -> None:
    scheduler = new_scheduler(token_budget=20, num_blocks=7, block_size=4)
    add(scheduler, "old", 4, max_tokens=9)
    add(scheduler, "young", 15, max_tokens=8)
    for _ in range(5):
        step(scheduler)
    add(scheduler, "tiny", 1, max_tokens=1)
    assert scheduler.preemptions == 0
    assert step(scheduler) == [("old", 8, 1)]
    assert (scheduler.preemptions, scheduler.pool.num_free) == (1, 4)
    assert step(scheduler) == [("old", 9, 1), ("tiny", 0, 1)]
