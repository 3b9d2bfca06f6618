"""Which snapshots of states are taken, found and evicted. The state machine checks what they hold."""

from typing import Any

import pytest

from jaxgen.cache.state_snapshots import StateSnapshots
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StateCopy
from jaxgen.scheduling.scheduler import Scheduler
from tests.support.small_scheduler import ARRIVALS, EOS, TOKEN, new_scheduler, run_dry, shown, step

SHARED = tuple(range(10, 18))
"""Two blocks."""


def scheduler_with(num_snapshots: int | None, **options: Any) -> Scheduler:
    return new_scheduler(**{"token_budget": 32, "prefix_caching": True, **options}, num_snapshots=num_snapshots)


def states_of(scheduler: Scheduler) -> StateSnapshots:
    states = scheduler._kv_cache.states
    assert states is not None
    return states


def ask(scheduler: Scheduler, prompt: tuple[int, ...], max_tokens: int = 1, **fields: Any) -> Sequence:
    arrival = next(ARRIVALS)
    request = Request(f"r{arrival}", prompt, SamplingParams(max_tokens=max_tokens), **fields)
    sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=arrival, seed=0)
    scheduler.add(sequence)
    return sequence


def chunks_of(scheduler: Scheduler, prompt: tuple[int, ...], max_tokens: int = 1) -> list[tuple[int, int]]:
    """Serve a request alone, and return start and length of each of its chunks."""
    ask(scheduler, prompt, max_tokens)
    chunks: list[tuple[int, int]] = []
    while scheduler.has_work:
        chunks += [(start, length) for _, start, length in step(scheduler)]
    return chunks


def test_a_chat_computes_less_than_a_block_again_in_each_turn() -> None:
    scheduler, prompt, again = scheduler_with(8), tuple(range(10, 20)), []
    new = len(prompt)
    for _ in range(5):
        sequence = ask(scheduler, prompt, max_tokens=6)
        computed = 0
        while scheduler.has_work:
            computed += sum(length for _, _, length in step(scheduler))
        again.append(computed - new - 5)  # of an answer of six tokens the last is never computed
        prompt, new = (*sequence.tokens, 90, 91, 92, 93, 94), 6
    assert again == [0, 3, 2, 1, 0]
    assert scheduler.counters.state_recomputed_tokens == 0


def test_the_same_prompt_begins_at_its_last_full_block() -> None:
    scheduler = scheduler_with(4)
    assert chunks_of(scheduler, (*SHARED, 30, 31)) == [(0, 8), (8, 2)]
    assert chunks_of(scheduler, (*SHARED, 30, 31)) == [(8, 2)]
    assert chunks_of(scheduler, SHARED) == [(0, 4), (4, 4)], "a token is left to compute, and nothing was taken after 4"
    assert scheduler.counters.state_recomputed_tokens == 4


def test_a_third_prompt_begins_where_the_second_branched_off() -> None:
    scheduler = scheduler_with(8)
    assert chunks_of(scheduler, (*SHARED, *range(30, 36))) == [(0, 12), (12, 2)]
    assert chunks_of(scheduler, (*SHARED, *range(40, 46))) == [(0, 8), (8, 4), (12, 2)]
    assert scheduler.counters.state_recomputed_tokens == 8
    assert chunks_of(scheduler, (*SHARED, *range(50, 56))) == [(8, 4), (12, 2)]
    assert scheduler.counters.state_recomputed_tokens == 8


def test_what_a_cut_chunk_leaves_of_the_budget_goes_to_others() -> None:
    scheduler = scheduler_with(8, token_budget=12)
    ask(scheduler, (*SHARED, 30, 31))
    ask(scheduler, tuple(range(50, 59)))
    plan = scheduler.schedule()
    assert [(start, length) for _, start, length in shown(plan)] == [(0, 8), (0, 4)]
    assert [copy.row for copy in plan.snapshots] == [0, 1], "also where a chunk happens to end with a block"


def test_a_step_takes_and_loads_what_its_plan_says() -> None:
    scheduler = scheduler_with(4)
    ask(scheduler, (*SHARED, 30))
    first = scheduler.schedule()
    assert (first.state_loads, first.snapshots) == ((), (StateCopy(0, 0),))
    scheduler.complete(first, [])
    step(scheduler)
    other, again = ask(scheduler, (20, 21)), ask(scheduler, (*SHARED, 31))
    plan = scheduler.schedule()
    assert (other.row, again.row) == (0, 1)
    assert (plan.state_loads, plan.snapshots) == ((StateCopy(1, 0),), ())


def test_a_snapshot_waits_for_its_tokens_and_goes_if_they_never_come() -> None:
    """Steps overlap: after the plan of the block's last token, that token has not arrived."""
    for aborts in (False, True):
        scheduler = scheduler_with(4)
        sequence = ask(scheduler, SHARED[:6], max_tokens=9)
        before = scheduler.schedule()
        for _ in range(2):
            plan = scheduler.schedule()
            scheduler.complete(before, [TOKEN] * before.num_samples)
            before = plan
        plan = scheduler.schedule()
        assert shown(plan) == [(sequence.request_id, 7, 1)]
        assert [copy.row for copy in plan.snapshots] == [0]
        if aborts:
            scheduler.abort(sequence.request_id)
        scheduler.complete(before, [TOKEN])
        assert states_of(scheduler).num_held == (1 if aborts else 2)


def test_a_decoding_sequence_keeps_one_snapshot_where_others_need_the_places() -> None:
    scheduler = scheduler_with(2)
    kept = chunks_of(scheduler, (*SHARED, 30))
    chunks_of(scheduler, tuple(range(50, 53)), max_tokens=30)
    assert scheduler.counters.snapshots_evicted > 0
    assert chunks_of(scheduler, (*SHARED, 30)) == kept[1:], "only its own were evicted"


def test_the_snapshot_that_was_not_used_for_longest_is_evicted() -> None:
    scheduler = scheduler_with(2)
    for first in (40, 50, 40, 60, 40, 50):
        chunks_of(scheduler, tuple(range(first, first + 5)))
    assert scheduler.counters.prefix_hits == 2 * 4
    assert scheduler.counters.snapshots_evicted == 2


def test_what_the_background_leaves_is_evicted_first() -> None:
    scheduler = scheduler_with(2)
    kept = chunks_of(scheduler, (*SHARED, 30))
    for first in (40, 50, 60):
        ask(scheduler, tuple(range(first, first + 5)), background=True)
        run_dry(scheduler)
    assert scheduler.counters.snapshots_evicted == 2
    assert chunks_of(scheduler, (*SHARED, 30)) == kept[1:]


def test_forced_tokens_end_where_a_snapshot_is_taken() -> None:
    scheduler = scheduler_with(8)
    sequence = ask(scheduler, SHARED[:3], max_tokens=20)
    step(scheduler)
    for token in range(60, 66):
        scheduler.force(sequence, token)
    assert [step(scheduler) for _ in range(2)] == [[(sequence.request_id, 3, 5)], [(sequence.request_id, 8, 2)]]
    assert states_of(scheduler).num_held == 1


@pytest.mark.parametrize(("num_snapshots", "caching"), [(0, True), (0, False), (4, False)])
def test_without_snapshots_all_is_computed_and_no_chunk_is_cut(num_snapshots: int, caching: bool) -> None:
    scheduler = scheduler_with(num_snapshots, prefix_caching=caching, copies_blocks=True)
    for _ in range(2):
        assert chunks_of(scheduler, (*SHARED, 30, 31)) == [(0, 10)]
    assert states_of(scheduler).num_held == 0


def test_the_beginning_of_a_block_is_not_copied() -> None:
    """There is no state within a block."""
    scheduler = scheduler_with(4, copies_blocks=True)
    chunks_of(scheduler, (*SHARED, 30, 31, 32, 33, 34))
    assert chunks_of(scheduler, (*SHARED, 30, 31, 32, 40)) == [(0, 8), (8, 4)]


def test_a_preempted_sequence_goes_on_from_its_last_snapshot() -> None:
    scheduler = scheduler_with(4, num_blocks=8, max_num_seqs=1)
    sequence = ask(scheduler, SHARED[:5], max_tokens=12)
    for _ in range(6):
        step(scheduler)
    assert (sequence.num_computed, len(sequence.tokens)) == (9, 10)
    scheduler._planner._preempt(sequence)
    assert step(scheduler) == [(sequence.request_id, 8, 2)]
    run_dry(scheduler)


def test_a_failure_forgets_all_snapshots() -> None:
    scheduler = scheduler_with(4)
    chunks_of(scheduler, (*SHARED, 30))
    scheduler.fail()
    assert states_of(scheduler).num_held == 0
    assert chunks_of(scheduler, (*SHARED, 30)) == [(0, 8), (8, 1)]


def test_a_snapshot_that_a_restore_waits_for_is_not_evicted() -> None:
    """Its row gets it with the next plan, since this one computes what is before the blocks."""
    scheduler = scheduler_with(1)
    states = states_of(scheduler)
    waiting = ask(scheduler, (*SHARED, 30), max_tokens=9)
    step(scheduler)
    states.hold(waiting, 2)
    ask(scheduler, tuple(range(50, 59)))
    assert scheduler.schedule().snapshots == ()
    states.load(waiting)
    plan = scheduler.schedule()
    assert plan.state_loads == (StateCopy(0, 0),)


def test_a_restore_that_failed_holds_no_snapshot() -> None:
    scheduler = scheduler_with(1)
    states = states_of(scheduler)
    waiting = ask(scheduler, (*SHARED, 30), max_tokens=9)
    step(scheduler)
    states.hold(waiting, 2)
    states.drop(waiting)
    ask(scheduler, tuple(range(50, 59)))
    assert scheduler.schedule().snapshots == (StateCopy(1, 0),)
