"""Machines that load the scheduler in ways that the plain one seldom does: with a host store, common prefixes, windows,
drafts, states, classes and tenants, and four callers of one level."""

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from jaxgen.core.service_class import ServiceClass
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.scheduler_machine import SchedulerMachine
from tests.support.scheduler_world import ARRIVALS, Arrival


class OffloadMachine(SchedulerMachine):
    """The same with a host store behind the pool, and requests that have more in common."""

    host_blocks = (3, 40, 40, 40)

    def _adapt(self, arrival: Arrival) -> Arrival:
        return replace(
            arrival,
            prompt=min(arrival.prompt + 3, 7),
            seed=arrival.seed % 2,
            prompt_logprobs=None,
            salt=None,
            background=arrival.background and arrival.stops,
        )


class PrefixMachine(SchedulerMachine):
    """The same with long prompts that have a beginning in common."""

    def _adapt(self, arrival: Arrival) -> Arrival:
        return replace(
            arrival,
            prompt=arrival.prompt + 3,
            seed=0,
            fork=(99, 9, 1, 2, 3, 5, 6)[arrival.seed % 7],
            salt=None,
            prompt_logprobs=None,
        )

    @rule(arrival=ARRIVALS, fork=st.integers(1, 6))
    def overtake(self, arrival: Arrival, fork: int) -> None:
        """A prompt of which a token is computed; then the same, served before it; and then one that begins like it.

        It is rare otherwise that blocks are found for one that runs, and that a beginning is copied from one.
        """
        last = replace(self._adapt(arrival), prompt=2, max_tokens=2, priority=1, fork=99)
        self.fill(1)
        for one in (last, replace(last, priority=-1), replace(last, fork=fork)):
            self.caller.add(one)
            self.step(1, None, 1, aborts=None, fails=False)
            self.fill(None)


class WindowMachine(PrefixMachine):
    """The same with further kinds of cache: windows of a token, below, at and above a block, and above the context."""

    windows: ClassVar[tuple[tuple[int, ...], ...]] = ((1,), (2,), (3,), (4,), (5,), (7,), (99,), (6, 3), (9, 2))


class WindowsAndHostMachine(OffloadMachine):
    """The same with a host store behind all pools."""

    windows = ((1,), (2,), (3,), (5,), (6, 3), (9, 2))


class DraftMachine(WindowMachine):
    """The same with drafts, with or without windows."""

    has_drafts = True
    windows: ClassVar[tuple[tuple[int, ...], ...]] = ((), (), (1,), (3,), (6, 3))


class DraftAndHostMachine(OffloadMachine):
    """The same with a host store behind the pool."""

    has_drafts = True


class StatesMachine(PrefixMachine):
    """The same with a state for each sequence in place of some layers' K and V, with or without windows of others."""

    has_states = True
    windows = ((), (), (), (1,), (3,), (6, 3))


class StatesAndHostMachine(OffloadMachine):
    """The same with a host store behind the pool."""

    has_states = True


class ServiceMachine(SchedulerMachine):
    """The same with two tenants and classes that promise something or nothing."""

    plain = False
    step_time = StepTimeModel(
        16, LinearCost(0.002, 0.0005, 3e-4, 3e-4)
    )  # positions cost so much that few tokens of a prompt may be left
    classes = (
        ServiceClass(name="nothing"),
        ServiceClass(name="soon", first_token_seconds=0.5, serve_late=True),
        ServiceClass(name="steady", first_token_seconds=9.0, inter_token_seconds=0.030, serve_late=True),
        ServiceClass(name="strict", prompt_rate=100.0, inter_token_seconds=0.016, serve_late=True),
    )

    def _adapt(self, arrival: Arrival) -> Arrival:
        service = self.classes[
            0 if arrival.background else (arrival.seed + arrival.min_tokens + arrival.max_tokens) % len(self.classes)
        ]
        return replace(
            arrival,
            prompt=min(arrival.prompt + 2, 9),
            service=service,
            tenant="ab"[: (arrival.prompt + arrival.seed) % 2],
        )


class CallersMachine(SchedulerMachine):
    """Four callers of one level whose completions fill a small cache, so that decodes take blocks of one another."""

    plain = False

    @initialize(
        block_size=st.integers(1, 2),
        num_blocks=st.integers(7, 12),
        rows=st.integers(4, 6),
        max_overtaken=st.integers(0, 3),
        prefix_caching=st.booleans(),
        narrow=st.booleans(),
        copies_blocks=st.booleans(),
    )
    def start(self, **drawn: Any) -> None:
        super().start(
            token_budget=16,
            extra_len=0,
            background_tokens=None,
            host_size=0,
            most_saving=1,
            recomputed=0,
            projected=0,
            fails_every=4,
            **drawn,
        )

    def _adapt(self, arrival: Arrival) -> Arrival:
        return replace(
            arrival,
            prompt=0,
            max_tokens=8,
            ignore_eos=True,
            stops=False,
            prompt_logprobs=None,
            priority=0,
            background=False,
            constrained=arrival.constrained and arrival.stops,
            tenant="abc"[: arrival.seed % 4],
        )

    @precondition(lambda self: len(self.book.live) < 3)
    @rule(arrival=ARRIVALS, callers=st.permutations((0, 1, 2, 3, 0, 1)))
    def all_come(self, arrival: Arrival, callers: list[int]) -> None:
        for caller in callers:
            self.caller.add(self._adapt(replace(arrival, seed=caller)))
        self.step(8, None, 1, aborts=None, fails=False)
