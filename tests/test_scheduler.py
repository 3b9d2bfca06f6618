import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.config import CacheConfig, SchedulerConfig
from jaxgen.request import FinishReason, Request, RequestRefusedError, SamplingParams
from jaxgen.scheduler import ADMISSION_WINDOW, MAX_OVERTAKEN, Scheduler
from jaxgen.sequence import Sequence, SequenceStatus
from jaxgen.step_plan import Outcome, StepPlan

EOS = 2
TOKEN = 7
ARRIVALS = itertools.count()


def new(
    token_budget: int = 8,
    max_num_seqs: int = 4,
    num_blocks: int = 32,
    block_size: int = 4,
    prefix_caching: bool = False,
) -> Scheduler:
    """Without the prefix cache unless asked for: what is computed, and where, then follows from lengths alone."""
    config = SchedulerConfig(token_budget, max_num_seqs, max_model_len=64, prefix_caching=prefix_caching)
    return Scheduler(config, CacheConfig(block_size=block_size, num_blocks=num_blocks))


def sequence_of(name: str, prompt: int, max_tokens: int = 4, **params: Any) -> Sequence:
    request = Request(name, tuple(range(100, 100 + prompt)), SamplingParams(max_tokens=max_tokens, **params))
    return Sequence(request, eos_token_ids=frozenset({EOS}), arrival=next(ARRIVALS), seed=0)


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 4, **params: Any) -> Sequence:
    sequence = sequence_of(name, prompt, max_tokens, **params)
    scheduler.add(sequence)
    return sequence


def shown(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.request_id, chunk.start, chunk.length) for chunk in plan.chunks]


def step(scheduler: Scheduler, token: int = TOKEN) -> list[tuple[str, int, int]]:
    plan = scheduler.schedule()
    seen = shown(plan)
    scheduler.complete(plan, [token] * plan.num_samples)
    return seen


def step_ahead(scheduler: Scheduler, before: StepPlan, token: int = TOKEN) -> tuple[StepPlan, list[Outcome]]:
    """The next plan, made while the one before it is in flight, and what that one brought."""
    plan = scheduler.schedule()
    return plan, scheduler.complete(before, [token] * before.num_samples)


def run_dry(scheduler: Scheduler, limit: int = 1000) -> None:
    for _ in range(limit):
        if not scheduler.has_work:
            assert scheduler.pool.num_free == scheduler.pool.num_blocks
            return
        assert step(scheduler)
    pytest.fail(f"still at work after {limit} steps")


class TestPlan:
    def test_nothing_to_do_is_an_empty_plan(self) -> None:
        scheduler = new()
        plan = scheduler.schedule()
        assert plan == StepPlan(())
        assert (plan.num_tokens, plan.num_samples, scheduler.has_work) == (0, 0, False)
        assert scheduler.complete(plan, []) == []

    def test_short_prompts_fill_the_budget_exactly(self) -> None:
        scheduler = new(token_budget=8)
        for name, prompt in [("a", 3), ("b", 3), ("c", 4)]:
            add(scheduler, name, prompt)
        assert step(scheduler) == [("a", 0, 3), ("b", 0, 3), ("c", 0, 2)]
        assert step(scheduler) == [("a", 3, 1), ("b", 3, 1), ("c", 2, 2)]

    def test_a_long_prompt_is_split_and_only_its_end_samples(self) -> None:
        scheduler = new(token_budget=8)
        sequence = add(scheduler, "a", 19)
        samples = []
        for start, length in [(0, 8), (8, 8), (16, 3)]:
            plan = scheduler.schedule()
            assert shown(plan) == [("a", start, length)]
            samples.append(plan.num_samples)
            outcomes = scheduler.complete(plan, [TOKEN] * plan.num_samples)
        assert samples == [0, 0, 1]
        assert outcomes == [Outcome(sequence, 0, TOKEN, None)]
        assert (sequence.num_generated, sequence.num_computed, sequence.is_decode) == (1, 19, True)

    def test_decodes_come_first_and_prompts_take_the_rest(self) -> None:
        scheduler = new(token_budget=8)
        add(scheduler, "a", 2)
        add(scheduler, "b", 30)
        add(scheduler, "c", 5)
        assert step(scheduler) == [("a", 0, 2), ("b", 0, 6)]
        assert step(scheduler) == [("a", 2, 1), ("b", 6, 7)]

    def test_chunks_of_one_token_come_first(self) -> None:
        scheduler = new(token_budget=8)
        for name, prompt in [("a", 3), ("b", 4), ("c", 6)]:
            add(scheduler, name, prompt, max_tokens=1)
        assert step(scheduler) == [("c", 0, 1), ("a", 0, 3), ("b", 0, 4)]

    def test_samples_stays_what_it_was_when_the_plan_was_made(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        plan = scheduler.schedule()
        scheduler.complete(plan, [TOKEN])
        assert plan.num_samples == 1

    def test_no_more_sequences_than_rows(self) -> None:
        scheduler = new(token_budget=8, max_num_seqs=2)
        first, second, third = (add(scheduler, name, 1, max_tokens=2) for name in "abc")
        assert step(scheduler) == [("a", 0, 1), ("b", 0, 1)]
        assert {first.row, second.row} == {0, 1}
        assert third.row is None
        step(scheduler)
        assert step(scheduler) == [("c", 0, 1)]
        assert (first.row, third.row in (0, 1)) == (None, True)

    def test_rows_all_decoding_leave_a_prompt_its_share(self) -> None:
        scheduler = new(token_budget=3, max_num_seqs=3)
        add(scheduler, "a", 1, max_tokens=9)
        add(scheduler, "b", 1, max_tokens=9)
        add(scheduler, "c", 3, max_tokens=9)
        assert step(scheduler) == [("a", 0, 1), ("b", 0, 1), ("c", 0, 1)]
        assert step(scheduler) == [("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]


class TestMemory:
    def test_admission_takes_the_blocks_of_the_whole_prompt(self) -> None:
        scheduler = new(token_budget=4, block_size=4)
        sequence = add(scheduler, "a", 18)
        step(scheduler)
        assert sequence.block_table == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(("prompt", "blocks"), [(3, 1), (4, 1), (5, 2)])
    def test_admission_takes_no_more_and_no_fewer_blocks_than_the_prompt_fills(self, prompt: int, blocks: int) -> None:
        scheduler = new(block_size=4)
        sequence = add(scheduler, "a", prompt)
        scheduler.schedule()
        assert len(sequence.block_table) == blocks

    def test_a_decode_takes_its_next_block_when_it_needs_it(self) -> None:
        scheduler = new(block_size=4)
        sequence = add(scheduler, "a", 3, max_tokens=9)
        held = []
        for _ in range(6):
            step(scheduler)
            held.append(len(sequence.block_table))
        assert held == [1, 1, 2, 2, 2, 2]

    def test_one_sequence_may_fill_the_whole_pool(self) -> None:
        scheduler = new(num_blocks=4, block_size=4)
        add(scheduler, "a", 10, max_tokens=7)
        run_dry(scheduler)
        assert scheduler.preemptions == 0

    def test_a_prompt_that_does_not_fit_does_not_block_those_behind(self) -> None:
        scheduler = new(num_blocks=8)
        add(scheduler, "runs", 12, max_tokens=20)
        step(scheduler)
        add(scheduler, "big", 24)
        add(scheduler, "small", 3)
        assert ("small", 0, 3) in step(scheduler)
        assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)

    def test_a_prompt_that_does_not_fit_is_overtaken_a_bounded_number_of_times(self) -> None:
        scheduler = new(num_blocks=8)
        add(scheduler, "runs", 12, max_tokens=18)
        step(scheduler)
        big = add(scheduler, "big", 24)
        behind = [add(scheduler, f"small{i}", 1, max_tokens=1) for i in range(MAX_OVERTAKEN + 5)]
        while big.status is SequenceStatus.WAITING:
            assert step(scheduler)
        overtook = [small for small in behind if small.status is SequenceStatus.FINISHED]
        assert overtook == behind[:MAX_OVERTAKEN]
        assert big.overtaken == 0  # counts anew if it is preempted
        run_dry(scheduler)

    def test_the_scan_of_the_waiting_is_bounded(self) -> None:
        scheduler = new(token_budget=16, num_blocks=8)
        add(scheduler, "runs", 12, max_tokens=20)
        step(scheduler)
        for i in range(ADMISSION_WINDOW):
            add(scheduler, f"big{i}", 24)
        add(scheduler, "small", 3)
        assert step(scheduler) == [("runs", 12, 1)]

    def test_admission_leaves_a_block_for_each_that_may_grow(self) -> None:
        scheduler = new(num_blocks=3, block_size=4)
        add(scheduler, "a", 4, max_tokens=5)
        add(scheduler, "b", 4, max_tokens=5)
        assert step(scheduler) == [("a", 0, 4)]
        run_dry(scheduler)
        assert scheduler.preemptions == 0

    def test_those_that_will_not_grow_need_no_spare_block(self) -> None:
        scheduler = new(num_blocks=3, block_size=4)
        for running, name in enumerate("abc", start=1):
            add(scheduler, name, 1, max_tokens=4)
            step(scheduler)
            assert scheduler.num_running == running

    def test_prompts_that_would_lock_fastgen_run(self) -> None:
        """Chunked prompts that take blocks as they go fill the pool and lock: four of 12 tokens in 8 blocks of 4."""
        scheduler = new(token_budget=4, max_num_seqs=4, num_blocks=8, block_size=4)
        sequences = [add(scheduler, name, 12, max_tokens=9) for name in "abcd"]
        for _ in range(200):
            if not scheduler.has_work:
                break
            plan = scheduler.schedule()
            assert plan.chunks
            for sequence in sequences:
                if sequence.status is SequenceStatus.RUNNING:
                    assert len(sequence.block_table) * 4 >= len(sequence.tokens)
            scheduler.complete(plan, [TOKEN] * plan.num_samples)
        assert [sequence.num_generated for sequence in sequences] == [9, 9, 9, 9]
        assert scheduler.pool.num_free == 8


class TestPreemption:
    @staticmethod
    def three_until_one_is_preempted() -> tuple[Scheduler, list[Sequence]]:
        """Prompts of 4, 7 and 4 tokens, of which the first and the third have grown by a block; 1 of 7 is left."""
        scheduler = new(token_budget=15, num_blocks=7, block_size=4)
        sequences = [add(scheduler, name, prompt, max_tokens=12) for name, prompt in [("a", 4), ("b", 7), ("c", 4)]]
        assert step(scheduler) == [("a", 0, 4), ("b", 0, 7), ("c", 0, 4)]
        assert step(scheduler) == [("a", 4, 1), ("b", 7, 1), ("c", 4, 1)]
        assert (scheduler.pool.num_free, scheduler.preemptions) == (1, 0)
        return scheduler, sequences

    def test_the_youngest_makes_room(self) -> None:
        scheduler, (first, second, third) = self.three_until_one_is_preempted()
        assert step(scheduler) == [("a", 5, 1), ("b", 8, 1), ("c", 5, 1)]
        for _ in range(3):
            assert scheduler.preemptions == 0
            seen = step(scheduler)
        assert scheduler.preemptions == 1
        assert [name for name, _, _ in seen] == ["a", "b"]
        assert [s.status for s in (first, second, third)] == ["running", "running", "waiting"]
        assert (third.num_computed, third.block_table, third.row) == (0, [], None)

    def test_the_preempted_is_computed_anew_and_goes_on(self) -> None:
        scheduler, (_, _, third) = self.three_until_one_is_preempted()
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

    def test_the_preempted_waits_before_younger_ones(self) -> None:
        scheduler, (first, second, third) = self.three_until_one_is_preempted()
        late = add(scheduler, "late", 16)
        while scheduler.preemptions == 0:
            step(scheduler)
        scheduler.abort(first.request_id)
        scheduler.abort(second.request_id)
        assert [name for name, _, _ in step(scheduler)] == ["c"]
        assert (third.status, late.status) == ("running", "waiting")

    def test_the_youngest_preempts_itself_when_it_is_the_one_in_want(self) -> None:
        scheduler = new(token_budget=2, max_num_seqs=2, num_blocks=5, block_size=1)
        add(scheduler, "old", 1, max_tokens=5)
        young = add(scheduler, "young", 1, max_tokens=5)
        assert step(scheduler) == [("old", 0, 1), ("young", 0, 1)]
        assert step(scheduler) == [("old", 1, 1), ("young", 1, 1)]
        assert step(scheduler) == [("old", 2, 1)]
        assert (young.status, scheduler.preemptions, scheduler.pool.num_free) == ("waiting", 1, 2)
        run_dry(scheduler)
        assert young.num_generated == 5

    def test_a_step_that_preempts_admits_nobody(self) -> None:
        scheduler = new(token_budget=20, num_blocks=7, block_size=4)
        add(scheduler, "old", 4, max_tokens=9)
        add(scheduler, "young", 15, max_tokens=8)
        for _ in range(5):
            step(scheduler)
        add(scheduler, "tiny", 1, max_tokens=1)
        assert scheduler.preemptions == 0
        assert step(scheduler) == [("old", 8, 1)]
        assert (scheduler.preemptions, scheduler.pool.num_free) == (1, 4)
        assert step(scheduler) == [("old", 9, 1), ("tiny", 0, 1)]


class TestEnds:
    @pytest.mark.parametrize(
        ("token", "params", "reason"),
        [
            (TOKEN, {}, None),
            (EOS, {}, FinishReason.STOP),
            (EOS, {"ignore_eos": True}, None),
            (EOS, {"ignore_eos": True, "stop_token_ids": (EOS,)}, FinishReason.STOP),
            (EOS, {"min_tokens": 1}, FinishReason.STOP),
            (EOS, {"min_tokens": 2}, None),
            (TOKEN, {"stop_token_ids": (9, TOKEN)}, FinishReason.STOP),
            (TOKEN, {"stop_token_ids": (TOKEN,), "min_tokens": 2}, None),
            (TOKEN, {"max_tokens": 1}, FinishReason.LENGTH),
            (EOS, {"max_tokens": 1}, FinishReason.STOP),
        ],
    )
    def test_the_first_token_ends_it_or_not(
        self, token: int, params: dict[str, Any], reason: FinishReason | None
    ) -> None:
        scheduler = new()
        sequence = add(scheduler, "a", 3, **params)
        plan = scheduler.schedule()
        assert scheduler.complete(plan, [token]) == [Outcome(sequence, 0, token, reason)]
        assert sequence.finish_reason is reason
        assert sequence.status is (SequenceStatus.RUNNING if reason is None else SequenceStatus.FINISHED)
        assert scheduler.has_work is (reason is None)
        assert scheduler.pool.num_free == (31 if reason is None else 32)

    def test_max_tokens_are_generated(self) -> None:
        scheduler = new()
        sequence = add(scheduler, "a", 3, max_tokens=5)
        run_dry(scheduler)
        assert sequence.tokens == [100, 101, 102, *[TOKEN] * 5]
        assert sequence.finish_reason is FinishReason.LENGTH

    @pytest.mark.parametrize("prompt_logprobs", [None, 0])
    def test_max_tokens_0_computes_the_prompt_and_samples_nothing(self, prompt_logprobs: int | None) -> None:
        scheduler = new(token_budget=8)
        sequence = add(scheduler, "a", 10, max_tokens=0, prompt_logprobs=prompt_logprobs)
        assert step(scheduler) == [("a", 0, 8)]
        plan = scheduler.schedule()
        assert (shown(plan), plan.num_samples) == ([("a", 8, 2)], 0)
        assert scheduler.complete(plan, []) == [Outcome(sequence, 0, None, FinishReason.LENGTH)]
        assert not scheduler.has_work

    def test_a_prompt_that_ends_in_a_stop_token_does_not_stop(self) -> None:
        scheduler = new()
        sequence = add(scheduler, "a", 3, max_tokens=0, stop_token_ids=(102,))
        step(scheduler)
        assert (sequence.tokens[-1], sequence.finish_reason) == (102, FinishReason.LENGTH)

    def test_outcomes_name_the_chunk_of_the_plan(self) -> None:
        scheduler = new(token_budget=8)
        first, second, third = add(scheduler, "a", 3), add(scheduler, "b", 6), add(scheduler, "c", 9)
        step(scheduler)
        plan = scheduler.schedule()
        assert shown(plan) == [("a", 3, 1), ("b", 5, 1), ("c", 0, 6)]
        assert scheduler.complete(plan, [30, 31]) == [Outcome(first, 0, 30, None), Outcome(second, 1, 31, None)]
        plan = scheduler.schedule()
        assert [outcome.index for outcome in scheduler.complete(plan, [40, 41, 42])] == [0, 1, 2]
        assert [s.tokens[-1] for s in (first, second, third)] == [40, 41, 42]

    def test_abort_of_a_waiting_one(self) -> None:
        scheduler = new(max_num_seqs=1)
        add(scheduler, "a", 3)
        waiting = [add(scheduler, name, 3) for name in "bcd"]
        step(scheduler)
        assert scheduler.abort("c")
        assert waiting[1].finish_reason is FinishReason.ABORT
        assert not scheduler.abort("c")
        run_dry(scheduler)
        assert [s.num_generated for s in waiting] == [4, 0, 4]

    def test_abort_of_a_running_one_frees_what_it_held(self) -> None:
        scheduler = new(max_num_seqs=1)
        sequence = add(scheduler, "a", 9)
        behind = add(scheduler, "b", 2)
        step(scheduler)
        step(scheduler)
        assert sequence.is_decode
        assert scheduler.abort("a")
        assert (sequence.finish_reason, scheduler.pool.num_free) == (FinishReason.ABORT, 32)
        assert step(scheduler) == [("b", 0, 2)]
        assert behind.row == 0

    def test_abort_of_a_partly_computed_prompt(self) -> None:
        scheduler = new(token_budget=4, max_num_seqs=2)
        add(scheduler, "a", 9)
        step(scheduler)
        assert scheduler.abort("a")
        assert (scheduler.has_work, scheduler.pool.num_free, scheduler.num_running) == (False, 32, 0)

    def test_abort_while_the_step_runs_drops_its_token(self) -> None:
        scheduler = new()
        first, second = add(scheduler, "a", 3), add(scheduler, "b", 3)
        plan = scheduler.schedule()
        scheduler.abort("a")
        assert scheduler.complete(plan, [30, 31]) == [Outcome(second, 1, 31, None)]
        assert first.num_generated == 0

    def test_abort_of_the_unknown(self) -> None:
        assert not new().abort("nobody")

    def test_a_lost_device_ends_all_that_run(self) -> None:
        scheduler = new(token_budget=4, max_num_seqs=3)
        first, second, third = add(scheduler, "a", 2), add(scheduler, "b", 9), add(scheduler, "c", 3)
        step(scheduler)
        assert shown(scheduler.schedule()) == [("a", 2, 1), ("b", 2, 3)]
        assert scheduler.fail() == [first, second]
        assert (first.finish_reason, second.finish_reason) == (FinishReason.ERROR, FinishReason.ERROR)
        assert (first.status, second.status, third.status) == ("finished", "finished", "waiting")
        assert scheduler.pool.num_free == 32
        run_dry(scheduler)
        assert third.num_generated == 4

    def test_fail_says_nothing_of_those_aborted_meanwhile(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        scheduler.schedule()
        scheduler.abort("a")
        assert scheduler.fail() == []


class TestOverlap:
    def test_the_next_plan_takes_the_token_on_the_way(self) -> None:
        scheduler = new()
        sequence = add(scheduler, "a", 3)
        first = scheduler.schedule()
        assert (first.admitted, sequence.num_computed, sequence.num_pending, sequence.num_tokens) == (
            (sequence,),
            3,
            1,
            4,
        )
        second = scheduler.schedule()
        assert (shown(second), second.num_samples, second.admitted) == ([("a", 3, 1)], 1, ())
        assert (len(sequence.tokens), sequence.num_pending) == (3, 2)
        assert scheduler.complete(first, [30]) == [Outcome(sequence, 0, 30, None)]
        assert scheduler.complete(second, [31]) == [Outcome(sequence, 0, 31, None)]
        assert (sequence.tokens[3:], sequence.num_pending, sequence.num_computed) == ([30, 31], 0, 4)

    def test_a_decode_gets_its_block_before_its_token_is_known(self) -> None:
        scheduler = new(block_size=4)
        sequence = add(scheduler, "a", 4)
        scheduler.schedule()
        assert len(sequence.block_table) == 1
        (chunk,) = scheduler.schedule().chunks
        assert (chunk.start, len(sequence.tokens), len(sequence.block_table)) == (4, 4, 2)

    def test_the_pieces_of_a_prompt_follow_each_other_in_flight(self) -> None:
        scheduler = new(token_budget=4)
        sequence = add(scheduler, "a", 10)
        plan, seen, outcomes = scheduler.schedule(), [], []
        for _ in range(3):
            seen += shown(plan)
            plan, got = step_ahead(scheduler, plan)
            outcomes += got
        assert seen == [("a", 0, 4), ("a", 4, 4), ("a", 8, 2)]
        assert outcomes == [Outcome(sequence, 0, TOKEN, None)]

    def test_what_was_planned_behind_an_eos_is_dropped(self) -> None:
        scheduler = new()
        sequence, other = add(scheduler, "a", 2), add(scheduler, "b", 2)
        first, second = scheduler.schedule(), scheduler.schedule()
        assert scheduler.complete(first, [EOS, 30])[0] == Outcome(sequence, 0, EOS, FinishReason.STOP)
        assert (sequence.status, sequence.num_pending, scheduler.pool.num_free) == ("finished", 0, 31)
        assert scheduler.complete(second, [31, 32]) == [Outcome(other, 1, 32, None)]
        assert sequence.tokens[2:] == [EOS]

    @pytest.mark.parametrize(("token", "reason"), [(TOKEN, FinishReason.LENGTH), (EOS, FinishReason.STOP)])
    def test_its_last_token_on_the_way_it_holds_nothing(self, token: int, reason: FinishReason) -> None:
        scheduler = new(max_num_seqs=1)
        sequence, behind = add(scheduler, "a", 3, max_tokens=2), add(scheduler, "b", 3)
        last, _ = step_ahead(scheduler, scheduler.schedule())
        assert (shown(last), sequence.status, scheduler.num_running) == ([("a", 3, 1)], "running", 1)
        plan = scheduler.schedule()
        assert (shown(plan), plan.admitted, behind.row) == ([("b", 0, 3)], (behind,), 0)
        assert (sequence.status, sequence.row, sequence.block_table) == ("ending", None, [])
        assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_ending) == (1, 0, 1)
        assert scheduler.complete(last, [token]) == [Outcome(sequence, 0, token, reason)]
        assert (sequence.status, scheduler.num_ending) == ("finished", 0)

    def test_a_prompt_that_samples_nothing_ends_the_same_way(self) -> None:
        scheduler = new()
        sequence = add(scheduler, "a", 3, max_tokens=0)
        plan = scheduler.schedule()
        assert scheduler.schedule() == StepPlan(())
        assert (sequence.status, scheduler.has_work) == ("ending", True)
        assert scheduler.complete(plan, []) == [Outcome(sequence, 0, None, FinishReason.LENGTH)]
        assert not scheduler.has_work

    def test_when_all_is_on_the_way_the_plan_is_empty_and_need_not_be_completed(self) -> None:
        scheduler = new()
        sequence = add(scheduler, "a", 3, max_tokens=1)
        plan = scheduler.schedule()
        empties = [scheduler.schedule() for _ in range(3)]
        assert empties == [StepPlan(())] * 3
        assert scheduler.complete(empties[0], []) == []
        assert scheduler.has_work
        assert scheduler.complete(plan, [TOKEN]) == [Outcome(sequence, 0, TOKEN, FinishReason.LENGTH)]
        assert not scheduler.has_work

    def test_abort_of_an_ending_one(self) -> None:
        scheduler = new()
        sequence = add(scheduler, "a", 3, max_tokens=1)
        plan = scheduler.schedule()
        scheduler.schedule()
        assert scheduler.abort("a")
        assert (sequence.finish_reason, scheduler.has_work, scheduler.num_ending) == (FinishReason.ABORT, False, 0)
        assert scheduler.complete(plan, [TOKEN]) == []

    def test_a_lost_device_ends_those_on_the_way_too(self) -> None:
        scheduler = new(max_num_seqs=1)
        ending, running, waiting = (add(scheduler, name, 3, max_tokens=n) for name, n in [("a", 1), ("b", 4), ("c", 4)])
        scheduler.schedule()
        scheduler.schedule()
        assert (ending.status, running.status) == ("ending", "running")
        assert scheduler.fail() == [ending, running]
        assert {sequence.finish_reason for sequence in (ending, running)} == {FinishReason.ERROR}
        run_dry(scheduler)
        assert waiting.num_generated == 4

    @staticmethod
    def preempted_with_a_token_on_the_way() -> tuple[Scheduler, Sequence, list[StepPlan]]:
        scheduler = new(token_budget=2, max_num_seqs=2, num_blocks=5, block_size=1)
        add(scheduler, "old", 1, max_tokens=5)
        young = add(scheduler, "young", 1, max_tokens=5)
        step(scheduler)
        plans = [scheduler.schedule(), scheduler.schedule()]
        assert [shown(plan) for plan in plans] == [[("old", 1, 1), ("young", 1, 1)], [("old", 2, 1)]]
        assert (young.status, young.num_pending, young.block_table) == ("waiting", 1, [])
        return scheduler, young, plans

    def test_one_preempted_with_a_token_on_the_way_gets_it(self) -> None:
        scheduler, young, plans = self.preempted_with_a_token_on_the_way()
        assert scheduler.complete(plans[0], [30, 31])[1] == Outcome(young, 1, 31, None)
        assert (young.status, young.num_pending) == ("waiting", 0)
        scheduler.complete(plans[1], [32])
        run_dry(scheduler)
        assert (young.tokens[2], young.num_generated) == (31, 5)

    def test_one_preempted_with_its_end_on_the_way_ends(self) -> None:
        scheduler, young, plans = self.preempted_with_a_token_on_the_way()
        assert scheduler.complete(plans[0], [30, EOS])[1] == Outcome(young, 1, EOS, FinishReason.STOP)
        assert (young.status, scheduler.num_waiting) == ("finished", 0)

    def test_a_lost_device_ends_one_preempted_with_a_token_on_the_way(self) -> None:
        scheduler, young, _ = self.preempted_with_a_token_on_the_way()
        assert young in scheduler.fail()
        assert young.finish_reason is FinishReason.ERROR

    def test_an_id_used_again_while_the_first_is_in_flight(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        plan = scheduler.schedule()
        scheduler.abort("a")
        again = add(scheduler, "a", 3)
        second, outcomes = step_ahead(scheduler, plan)
        assert outcomes == []
        assert scheduler.complete(second, [TOKEN]) == [Outcome(again, 0, TOKEN, None)]


class TestRefusals:
    def test_too_long_for_the_model(self) -> None:
        with pytest.raises(RequestRefusedError, match=r"max_tokens \(5\) is 65 .*--max-model-len\) is 64"):
            add(new(), "a", 60, max_tokens=5)
        add(new(), "a", 60, max_tokens=4)

    def test_too_long_for_the_cache(self) -> None:
        scheduler = new(num_blocks=3, block_size=4)
        with pytest.raises(RequestRefusedError, match=r"takes 4 cache blocks of 4 tokens, .*--num-blocks\) has 3"):
            add(scheduler, "a", 10, max_tokens=4)
        add(scheduler, "a", 10, max_tokens=3)  # the last token is never computed
        run_dry(scheduler)

    def test_an_id_in_use(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        with pytest.raises(ValueError, match="request_id 'a' is in use"):
            add(scheduler, "a", 3)
        run_dry(scheduler)
        add(scheduler, "a", 3)

    def test_an_arrival_out_of_order(self) -> None:
        scheduler = new()
        early = sequence_of("early", 3)
        late = add(scheduler, "late", 3)
        with pytest.raises(ValueError, match=f"arrival must be above {late.arrival}, not {early.arrival}"):
            scheduler.add(early)

    def test_the_wrong_number_of_tokens(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        plan = scheduler.schedule()
        with pytest.raises(ValueError, match=re.escape("the plan samples 1 tokens, got 2")):
            scheduler.complete(plan, [1, 2])

    def test_a_plan_completed_twice(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        plan = scheduler.schedule()
        scheduler.complete(plan, [TOKEN])
        with pytest.raises(RuntimeError, match="stale plan: plans are completed once, in the order planned"):
            scheduler.complete(plan, [TOKEN])

    def test_a_plan_completed_before_the_one_before_it(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        first, second = scheduler.schedule(), scheduler.schedule()
        with pytest.raises(RuntimeError, match="stale plan"):
            scheduler.complete(second, [TOKEN])
        assert [len(scheduler.complete(plan, [TOKEN])) for plan in (first, second)] == [1, 1]

    def test_a_plan_lost_with_the_device(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        plan = scheduler.schedule()
        scheduler.fail()
        with pytest.raises(RuntimeError, match="stale plan"):
            scheduler.complete(plan, [TOKEN])

    def test_a_third_plan_while_two_are_in_flight(self) -> None:
        scheduler = new()
        add(scheduler, "a", 3)
        plan = scheduler.schedule()
        scheduler.schedule()
        with pytest.raises(RuntimeError, match="two plans are in flight"):
            scheduler.schedule()
        scheduler.complete(plan, [TOKEN])
        assert shown(scheduler.schedule()) == [("a", 4, 1)]


def started(scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 4, **level: Any) -> Sequence:
    """Added with a level, and stepped once."""
    sequence = sequence_of(name, prompt, max_tokens)
    request = replace(sequence.request, prompt=tuple(range(len(name) * 50, len(name) * 50 + prompt)), **level)
    sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=next(ARRIVALS), seed=0)
    scheduler.add(sequence)
    step(scheduler)
    return sequence


class TestLevels:
    def test_the_urgent_are_served_first_and_then_the_oldest(self) -> None:
        scheduler = new(max_num_seqs=1)
        add(scheduler, "runs", 1, max_tokens=9)
        step(scheduler)
        for name, priority in [("a", 0), ("late", 5), ("b", 0), ("urgent", 0)]:
            request = Request(name, (5,), SamplingParams(max_tokens=2), priority=priority)
            scheduler.add(Sequence(request, eos_token_ids=frozenset(), arrival=next(ARRIVALS), seed=0))
        order = [name for _ in range(20) for name, *_ in step(scheduler)]
        assert list(dict.fromkeys(order)) == ["runs", "a", "b", "urgent", "late"]

    @pytest.mark.parametrize("level", [{"priority": 1}, {"background": True}])
    @pytest.mark.parametrize("scarce", [{"max_num_seqs": 2}, {"num_blocks": 4}])
    def test_a_row_and_blocks_are_taken_from_later_levels_at_once(
        self, level: dict[str, Any], scarce: dict[str, Any]
    ) -> None:
        scheduler = new(**scarce)
        older = started(scheduler, "o", 5, **level)
        younger = started(scheduler, "y", 5, **level)
        add(scheduler, "online", 3)
        plan = scheduler.schedule()
        assert [sequence.request_id for sequence in plan.admitted] == ["online"]
        assert (older.status, younger.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
        scheduler.complete(plan, [TOKEN] * plan.num_samples)
        run_dry(scheduler)
        assert younger.num_preemptions == 1

    def test_nothing_is_taken_where_there_is_room(self) -> None:
        scheduler = new()
        started(scheduler, "back", 5, background=True)
        add(scheduler, "online", 3)
        step(scheduler)
        assert (scheduler.preemptions, scheduler.num_running) == (0, 2)

    def test_prompts_of_callers_come_before_tokens_of_the_background(self) -> None:
        scheduler = new(token_budget=8)
        started(scheduler, "back", 3, max_tokens=9, background=True)
        add(scheduler, "online", 19)
        assert [step(scheduler) for _ in range(3)] == [
            [("online", 0, 8)],
            [("online", 8, 8)],
            [("back", 3, 1), ("online", 16, 3)],
        ]

    def test_the_background_keeps_narrow_steps_narrow_and_fills_wide_ones(self) -> None:
        config = SchedulerConfig(8, 4, 64, prefix_caching=False)
        scheduler = Scheduler(config, CacheConfig(4, 32), narrow=True)
        started(scheduler, "online", 3)
        back = Request("back", tuple(range(9)), SamplingParams(max_tokens=4), background=True)
        scheduler.add(Sequence(back, eos_token_ids=frozenset(), arrival=next(ARRIVALS), seed=0))
        assert step(scheduler) == [("online", 3, 1), ("back", 0, 1)]
        add(scheduler, "wide", 3)
        assert step(scheduler) == [("online", 4, 1), ("wide", 0, 3), ("back", 1, 4)]

    def test_the_background_is_bounded_beside_others_only(self) -> None:
        config = SchedulerConfig(8, 4, 64, prefix_caching=False, background_tokens=2)
        scheduler = Scheduler(config, CacheConfig(4, 32))
        online = started(scheduler, "online", 3, max_tokens=2)
        back = Request("back", tuple(range(12)), SamplingParams(max_tokens=1), background=True)
        scheduler.add(Sequence(back, eos_token_ids=frozenset(), arrival=next(ARRIVALS), seed=0))
        assert step(scheduler) == [("online", 3, 1), ("back", 0, 2)]
        assert online.status is SequenceStatus.FINISHED
        assert step(scheduler) == [("back", 2, 8)]

    def test_what_the_background_leaves_is_evicted_before_what_others_left(self) -> None:
        scheduler = new(num_blocks=6, prefix_caching=True)
        kept = started(scheduler, "online", 9, max_tokens=1)
        step(scheduler)
        for name in ("b1", "b22", "b333", "b4444"):
            started(scheduler, name, 9, max_tokens=1, background=True)
            step(scheduler)
        found = [scheduler.pool.find(key) for key in kept.block_keys]
        assert len(found) == 2
        assert None not in found
