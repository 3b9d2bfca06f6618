"""Any order of arrivals, steps, aborts and failures, on pools so small that preemption is common.

The device is a dict from slot to what was last written there, and the next token is a hash of what a sequence's block
table leads to. So a block with two owners, a prompt not computed anew, or a token computed twice shows in the output.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jaxgen.config import CacheConfig, SchedulerConfig
from jaxgen.request import FinishReason, Request, RequestRefusedError, SamplingParams
from jaxgen.scheduler import ADMISSION_WINDOW, Outcome, Scheduler, StepPlan
from jaxgen.sequence import Sequence, SequenceStatus

EOS = 0
STOP_TOKEN = 1
VOCAB = 12


def next_token(context: list[int]) -> int:
    return crc32(bytes(context)) % VOCAB


def full_recomputation(request: Request) -> tuple[list[int], FinishReason]:
    """Tokens and reason of a request that has the device to itself, one step for each token."""
    params, tokens = request.params, list(request.prompt)
    for count in range(1, params.max_tokens + 1):
        token = next_token(tokens)
        tokens.append(token)
        ends = token in params.stop_token_ids or (token == EOS and not params.ignore_eos)
        if ends and count >= params.min_tokens:
            return tokens, FinishReason.STOP
    return tokens, FinishReason.LENGTH


@dataclass(frozen=True)
class Arrival:
    """A request in eighths of what fits: of the model's length for the prompt, of what that leaves for max_tokens."""

    prompt: int
    max_tokens: int
    seed: int
    min_tokens: int
    ignore_eos: bool
    stops: bool

    def request(self, name: str, longest: int) -> Request:
        prompt = max(1, longest * self.prompt // 8)
        max_tokens = max(0, longest - prompt) * self.max_tokens // 8
        params = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(self.min_tokens, max_tokens),
            ignore_eos=self.ignore_eos,
            stop_token_ids=(STOP_TOKEN,) if self.stops else (),
        )
        return Request(name, tuple(next_token([self.seed, i]) for i in range(prompt)), params)


# Short prompts with much to say are the likeliest, for these fill the pool while they run; a few are refused.
ARRIVALS = st.builds(
    Arrival,
    prompt=st.integers(0, 2) | st.integers(0, 9),
    max_tokens=st.integers(4, 8) | st.integers(0, 9),
    seed=st.integers(0, 255),
    min_tokens=st.sampled_from([0, 0, 3, 99]),
    ignore_eos=st.booleans(),
    stops=st.booleans(),
)


class SchedulerMachine(RuleBasedStateMachine):
    """A caller, a device, and a book of who should hold what."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        block_size=st.integers(1, 2) | st.integers(1, 4),
        num_blocks=st.integers(6, 12) | st.integers(1, 12),
        token_budget=st.integers(4, 16) | st.integers(1, 16),
        rows=st.integers(3, 6) | st.integers(1, 6),
        extra_len=st.integers(-2, 2),
        max_overtaken=st.integers(0, 3),
    )
    def start(
        self, block_size: int, num_blocks: int, token_budget: int, rows: int, extra_len: int, max_overtaken: int
    ) -> None:
        cache = CacheConfig(block_size=block_size, num_blocks=num_blocks)
        # A sequence's last token takes no slot; a model longer than the cache makes refusals.
        longest = max(cache.num_slots + 1 + extra_len, 2)
        config = SchedulerConfig(token_budget=token_budget, max_num_seqs=min(rows, token_budget), max_model_len=longest)
        self.cache, self.config, self.max_overtaken = cache, config, max_overtaken
        self.scheduler = Scheduler(config, cache, max_overtaken=max_overtaken)
        self.device: dict[int, tuple[int, int, int]] = {}
        self.live: dict[str, Sequence] = {}
        self.ended: set[str] = set()
        self.arrivals = 0
        self.overtaken: Counter[int] = Counter()

    # What may happen

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=4))
    def add(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self._add(arrival)

    @precondition(lambda self: self.live)
    @rule(steps=st.integers(1, 8), arrival=st.none() | ARRIVALS)
    def step(self, steps: int, arrival: Arrival | None) -> None:
        for _ in range(steps):
            plan = self._schedule()
            self._complete(plan, self._run(plan))
        if arrival is not None:
            self._add(arrival)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 99), when=st.sampled_from(["between steps", "in a step", "in a step that fails"]))
    def abort(self, pick: int, when: str) -> None:
        name = sorted(self.live)[pick % len(self.live)]
        if when == "between steps":
            self._abort(name)
            return
        plan = self._schedule()
        sampled = self._run(plan)
        self._abort(name)
        if when == "in a step":
            self._complete(plan, sampled)
        else:
            self._fail(plan)

    def teardown(self) -> None:
        """When nobody comes any more, everything ends, and within a bound."""
        # The oldest of all is admitted when those running now and those that may still overtake it have ended, if not
        # before; the oldest running advances in every step. Then the same again for the next oldest.
        turns = self.config.max_num_seqs + self.max_overtaken + 1
        bound = len(self.live) * turns * self.config.max_model_len
        for _ in range(bound):
            if not self.live:
                break
            self.step(1, None)
            self.every_block_has_one_owner()
        assert not self.live
        assert not self.scheduler.has_work
        assert self.scheduler.schedule() == StepPlan(())
        assert self.scheduler.pool.num_free == self.cache.num_blocks
        self.seen["preemptions"] += self.scheduler.preemptions

    # What must hold between any two calls

    @invariant()
    def every_block_has_one_owner(self) -> None:
        owned = [block for sequence in self.live.values() for block in sequence.block_table]
        assert len(set(owned)) == len(owned)
        assert set(owned) <= set(range(self.cache.num_blocks))
        assert len(owned) + self.scheduler.pool.num_free == self.cache.num_blocks

    @invariant()
    def every_sequence_holds_what_its_status_says(self) -> None:
        running = self._running()
        waiting = self._waiting()
        assert (self.scheduler.num_running, self.scheduler.num_waiting) == (len(running), len(waiting))
        assert self.scheduler.has_work is bool(self.live)
        assert len({sequence.sampler_row for sequence in running}) == len(running)
        for sequence in running:
            assert sequence.sampler_row in range(self.config.max_num_seqs)
            assert 0 <= sequence.num_computed < len(sequence.tokens)
            held = len(sequence.block_table)
            # The token sampled last may have no slot yet.
            assert held in (self._blocks(len(sequence.tokens)), self._blocks(len(sequence.tokens) - 1))
            assert held >= self._blocks(sequence.num_computed)
        assert sum(not sequence.is_decode for sequence in running) <= 1
        for sequence in waiting:
            assert (sequence.block_table, sequence.sampler_row, sequence.num_computed) == ([], None, 0)

    # How it is done

    def _add(self, arrival: Arrival) -> None:
        request = arrival.request(f"r{self.arrivals}", self.config.max_model_len)
        sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=self.arrivals, seed=0)
        prompt, max_tokens = len(request.prompt), request.params.max_tokens
        if prompt + max_tokens > self.config.max_model_len or prompt + max(max_tokens - 1, 0) > self.cache.num_slots:
            with pytest.raises(RequestRefusedError):
                self.scheduler.add(sequence)
            return
        self.scheduler.add(sequence)
        self.live[request.request_id] = sequence
        self.arrivals += 1

    def _running(self) -> list[Sequence]:
        return [sequence for sequence in self.live.values() if sequence.sampler_row is not None]

    def _waiting(self) -> list[Sequence]:
        return [sequence for sequence in self.live.values() if sequence.sampler_row is None]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.cache.block_size)

    def _schedule(self) -> StepPlan:
        ran, waited = self._running(), self._waiting()
        preemptions = self.scheduler.preemptions
        plan = self.scheduler.schedule()
        run = self._running()
        self._check_chunks(plan, run)
        planned = {chunk.sequence for chunk in plan.chunks}
        preempted = set(ran) - set(run)
        assert self.scheduler.preemptions == preemptions + len(preempted)
        assert bool(plan.chunks) is bool(self.live)
        assert planned == set(run)
        if ran:  # the oldest stays, and who goes is younger than who stays
            assert ran[0] in run
            assert all(gone.arrival > kept.arrival for gone in preempted for kept in run)
        admitted = [sequence for sequence in waited if sequence in run]
        assert not (admitted and preempted)
        still = [sequence for sequence in waited if sequence not in run]
        self._check_overtaking(still, admitted)
        if plan.num_tokens < self.config.token_budget:
            # Nothing that runs could take more; who waits has no row, no room, or may not overtake once more.
            assert all(chunk.end == len(chunk.sequence.tokens) for chunk in plan.chunks)
            if still and not preempted and len(run) < self.config.max_num_seqs:
                room = self.scheduler.pool.num_free - len(run) - 1
                for sequence in still[:ADMISSION_WINDOW]:
                    assert self._blocks(len(sequence.tokens)) > room
                    if self.overtaken[sequence.arrival] == self.max_overtaken:
                        break
        return plan

    def _check_chunks(self, plan: StepPlan, run: list[Sequence]) -> None:
        assert plan.num_tokens == sum(chunk.length for chunk in plan.chunks) <= self.config.token_budget
        assert len({chunk.sequence for chunk in plan.chunks}) == len(plan.chunks) <= self.config.max_num_seqs
        assert [chunk.length > 1 for chunk in plan.chunks] == sorted(chunk.length > 1 for chunk in plan.chunks)
        assert {chunk.sequence for chunk in plan.chunks} <= set(run)
        for chunk in plan.chunks:
            sequence, end = chunk.sequence, chunk.start + chunk.length
            assert (chunk.start, chunk.end) == (sequence.num_computed, end)
            assert chunk.start < end <= len(sequence.tokens)
            assert chunk.samples is (end == len(sequence.tokens) and sequence.params.max_tokens > 0)
        for sequence in run:
            assert len(sequence.block_table) == self._blocks(len(sequence.tokens))

    def _check_overtaking(self, still: list[Sequence], admitted: list[Sequence]) -> None:
        for sequence in admitted:
            self.overtaken.pop(sequence.arrival, None)
        for sequence in still:
            self.overtaken[sequence.arrival] += sum(younger.arrival > sequence.arrival for younger in admitted)
            assert self.overtaken[sequence.arrival] <= self.max_overtaken
            self.seen["at the bound"] += self.overtaken[sequence.arrival] == self.max_overtaken > 0

    def _run(self, plan: StepPlan) -> list[int]:
        """The device: writes every chunk's tokens, then reads every context."""
        for chunk in plan.chunks:
            sequence = chunk.sequence
            for position in range(chunk.start, chunk.end):
                self.device[self._slot(sequence, position)] = (sequence.arrival, position, sequence.tokens[position])
        sampled = []
        for chunk in plan.chunks:
            sequence, end = chunk.sequence, chunk.end
            context = [self.device[self._slot(sequence, position)] for position in range(end)]
            assert [entry[:2] for entry in context] == [(sequence.arrival, position) for position in range(end)]
            if chunk.samples:
                sampled.append(next_token([token for _, _, token in context]))
        return sampled

    def _slot(self, sequence: Sequence, position: int) -> int:
        block, offset = divmod(position, self.cache.block_size)
        return sequence.block_table[block] * self.cache.block_size + offset

    def _complete(self, plan: StepPlan, sampled: list[int]) -> None:
        expected = list(self._expected_outcomes(plan, sampled))
        outcomes = self.scheduler.complete(plan, sampled)
        assert [(outcome.row, outcome.token) for outcome in outcomes] == expected
        for outcome in outcomes:
            assert outcome.sequence is plan.chunks[outcome.row].sequence
            self._check_output(outcome)

    def _fail(self, plan: StepPlan) -> None:
        alive = [chunk.sequence for chunk in plan.chunks if chunk.sequence.request_id in self.live]
        outcomes = self.scheduler.fail(plan)
        self.device.clear()
        assert [outcome.sequence for outcome in outcomes] == alive
        for outcome in outcomes:
            assert (outcome.token, outcome.finish_reason) == (None, FinishReason.ERROR)
            self._end(outcome.sequence, FinishReason.ERROR)
        assert self.scheduler.num_running == 0

    def _expected_outcomes(self, plan: StepPlan, sampled: list[int]) -> list[tuple[int, int | None]]:
        tokens = iter(sampled)
        expected: list[tuple[int, int | None]] = []
        for row, chunk in enumerate(plan.chunks):
            token = next(tokens) if chunk.samples else None
            if chunk.sequence.request_id in self.live and chunk.end == len(chunk.sequence.tokens):
                expected.append((row, token))
        return expected

    def _check_output(self, outcome: Outcome) -> None:
        sequence = outcome.sequence
        tokens, reason = full_recomputation(sequence.request)
        assert sequence.tokens == tokens[: len(sequence.tokens)]
        assert (outcome.finish_reason is None) is (len(sequence.tokens) < len(tokens))
        if outcome.finish_reason is not None:
            self._end(sequence, reason)

    def _abort(self, request_id: str) -> None:
        assert self.scheduler.abort(request_id)
        self._end(self.live[request_id], FinishReason.ABORT)
        assert not self.scheduler.abort(request_id)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        assert sequence.request_id not in self.ended
        self.ended.add(sequence.request_id)
        del self.live[sequence.request_id]
        assert (sequence.status, sequence.finish_reason) == (SequenceStatus.FINISHED, reason)
        assert (sequence.block_table, sequence.sampler_row) == ([], None)


def run_machine(examples: int) -> None:
    SchedulerMachine.seen.clear()
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    # Else the load was too light to show anything.
    assert SchedulerMachine.seen["preemptions"] > 0
    assert SchedulerMachine.seen["at the bound"] > 0


def test_the_scheduler_under_any_load() -> None:
    run_machine(200)


@pytest.mark.full
@pytest.mark.timeout(1800)  # minutes where the run checks the types of every call
def test_the_scheduler_under_any_load_at_length() -> None:
    run_machine(2000)
