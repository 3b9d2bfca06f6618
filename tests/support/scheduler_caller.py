"""What an engine and its callers do to a scheduler, with every answer checked and put into the book."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import pytest

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from tests.support.scheduler_book import Book
from tests.support.scheduler_oracle import PlanOracle
from tests.support.scheduler_world import EOS, Arrival, Device, full_recomputation, next_token
from tests.support.window_checks import check_windows, owners_of


@dataclass
class Constraint:
    """The scheduler asks whether it changes, and whether it is behind."""

    changes: bool = True
    behind: bool = False
    mask: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))


class Caller:
    """Of one scheduler; every ``fails_every``-th restore fails."""

    def __init__(self, book: Book, fails_every: int) -> None:
        self.arrivals = 0
        self._book = book
        self._oracle = PlanOracle(book)
        self._landings = 0
        self._fails_every = fails_every

    def add(self, arrival: Arrival) -> None:
        """Is refused if it can never fit."""
        book = self._book
        request = arrival.request(f"r{self.arrivals}", book.config.max_model_len)
        constraint = Constraint() if arrival.constrained else None
        sequence = Sequence(
            request, eos_token_ids=frozenset({EOS}), arrival=self.arrivals, seed=0, constraint=constraint
        )
        prompt, max_tokens = len(request.prompt), request.params.max_tokens
        if prompt + max_tokens > book.config.max_model_len or prompt + max(max_tokens - 1, 0) > book.cache.num_slots:
            with pytest.raises(RequestRefusedError):
                book.scheduler.add(sequence, book.now)
            return
        book.scheduler.add(sequence, book.now)
        book.live[request.request_id] = sequence
        self.arrivals += 1

    def schedule(self) -> StepPlan:
        """A plan, which the device runs at once."""
        book = self._book
        before, owners = self._oracle.before(), owners_of(book)
        plan = book.plan()
        self._oracle.check(plan, before)
        check_windows(book, plan, owners)
        if book.host:
            book.host.start(plan)
            book.seen["saved without inputs"] += any(not save.has_inputs for save in plan.saves)
        if plan.chunks:
            book.in_flight.append((plan, book.device.run(plan)))
        else:
            book.device.load(plan)
            assert book.scheduler.complete(plan, []) == []
            book.seen["all in flight"] += bool(book.live)
        return plan

    def complete(self) -> None:
        """The oldest plan in flight."""
        plan, sampled = self._book.in_flight.pop(0)
        expected = list(self._expected_outcomes(plan, sampled))
        outcomes = self._book.scheduler.complete(plan, sampled)
        assert [(outcome.sequence, outcome.index, outcome.token) for outcome in outcomes] == expected
        last = {outcome.sequence: outcome for outcome in outcomes}
        assert all(outcome.finish_reason is None or outcome is last[outcome.sequence] for outcome in outcomes)
        for sequence, outcome in last.items():
            self._check_output(sequence, outcome.finish_reason)
            self._force(outcome)
        told = sum(outcome.token is not None for outcome in outcomes)
        self._book.seen["dropped"] += len(sampled) - plan.num_drafts > told

    def abort(self, name: str) -> None:
        book = self._book
        book.seen[f"aborted while {book.live[name].status}"] += 1
        assert book.scheduler.abort(name)
        book.end(book.live[name], FinishReason.ABORT)
        assert not book.scheduler.abort(name)

    def fail(self) -> None:
        """The device's state is lost, and with it all that ran or had a token on the way."""
        book = self._book
        lost = [s for s in book.live.values() if s.row is not None or s in book.ending() or s.num_pending]
        plans = [plan for plan, _ in book.in_flight]
        book.in_flight.clear()
        book.device = Device(book.cache.block_size, book.cache.windows, has_states=book.device.has_states)
        assert book.scheduler.fail() == lost
        if book.host:
            book.host.fail(book.device)
        for sequence in lost:
            book.end(sequence, FinishReason.ERROR)
        scheduler = book.scheduler
        assert (scheduler.num_running, scheduler.num_ending, scheduler.pool.num_cached) == (0, 0, 0)
        for plan in plans:
            with pytest.raises(RuntimeError, match="stale plan"):
                scheduler.complete(plan, [0] * plan.num_samples)

    def land_save(self, *, whole: bool) -> None:
        assert self._book.host
        self._book.host.land_save(whole=whole)
        self._book.seen["saved" if whole else "save failed"] += 1

    def land_restore(self) -> None:
        book = self._book
        assert book.host
        self._landings += 1
        whole = self._landings % self._fails_every > 0
        restore = book.host.land_restore(whole=whole)
        sequence = restore.sequence
        book.seen["restore " + ("cancelled" if restore.cancelled else "arrived" if whole else "failed")] += 1
        if whole and not restore.cancelled:
            book.arrived[sequence].append((restore.start, restore.end))
            book.seen["projected"] += restore.num_projected > 0
            book.seen["projected and copied"] += 0 < restore.num_projected < len(restore.blocks)
            book.seen["a state came"] += restore.state is not None
            book.seen["a state alone came"] += restore.state is not None and not restore.blocks
            book.seen["blocks of windows came"] += any(window.blocks for window in restore.windows)
            book.seen["blocks of windows alone came"] += not restore.blocks and restore.state is None
            book.seen["blocks behind a window came alone"] += not any(window.blocks for window in restore.windows)
            book.seen["blocks came behind a gap"] += bool(restore.blocks) and not restore.can_compute
            if not sequence.standing.num_preemptions:
                book.first_hits[sequence.request_id] += restore.end - restore.start
        elif not (restore.cancelled or restore.can_compute):
            book.seen["began again without a state"] += 1
            if not sequence.standing.num_preemptions:
                del book.first_hits[sequence.request_id]
        book.scheduler.restored(restore, whole=whole)

    def land_all(self) -> bool:
        """Every copy that is under way ends; whether there was one."""
        host = self._book.host
        if not host:
            return False
        any_under_way = bool(host.saves or host.restores)
        while host.saves:
            host.land_save(whole=True)
        while host.restores:
            self.land_restore()
        return any_under_way

    def _expected_outcomes(self, plan: StepPlan, sampled: list[int]) -> Iterator[tuple[Sequence, int, int | None]]:
        """Each token that a sequence gets, with its index among the samples; None: it ends without one."""
        first = 0
        for chunk in plan.chunks:
            sequence, tokens = chunk.sequence, sampled[first : first + chunk.num_samples]
            if self._book.live.get(sequence.request_id) is sequence:
                if sequence.params.max_tokens == 0 and chunk.end == sequence.num_prompt:
                    yield sequence, first, None
                self._book.seen[f"token of one {sequence.status}"] += chunk.samples
                whole, _ = full_recomputation(sequence.request)
                right = [*takewhile(lambda at: at[0] == at[1], zip(chunk.drafts, tokens, strict=False))]
                coming = tokens[: len(right) + 1][: len(whole) - len(sequence.tokens)]
                self._note_drafts(chunk, len(right), len(coming))
                yield from [(sequence, first + index, token) for index, token in enumerate(coming)]
            first += len(tokens)

    def _note_drafts(self, chunk: Chunk, right: int, told: int) -> None:
        seen = self._book.seen
        seen["right drafts"] += right > 0
        seen["wrong drafts"] += right < len(chunk.drafts)
        seen["ended within drafts"] += told <= right
        seen["filled a block with drafts"] += (
            0 < len(chunk.drafts) == right and chunk.end % self._book.cache.block_size == 0
        )
        seen["drafts after a preemption"] += bool(chunk.drafts) and chunk.sequence.standing.num_preemptions > 0

    def _force(self, outcome: Outcome) -> None:
        """Up to three tokens that may follow alone, where a constraint has followed a token."""
        sequence, reason = outcome.sequence, outcome.finish_reason
        if sequence.constraint is None or outcome.token is None:
            return
        for _ in range(sum(sequence.tokens) % 4):
            if reason is not None:
                break
            self._book.seen[f"forced on one {sequence.status}"] += 1
            reason = self._book.scheduler.force(sequence, next_token(sequence.tokens))
            self._check_output(sequence, reason)

    def _check_output(self, sequence: Sequence, finish_reason: FinishReason | None) -> None:
        tokens, reason = full_recomputation(sequence.request)
        assert sequence.tokens == tokens[: len(sequence.tokens)]
        assert (finish_reason is None) is (len(sequence.tokens) < len(tokens))
        if finish_reason is not None:
            self._book.end(sequence, reason)
