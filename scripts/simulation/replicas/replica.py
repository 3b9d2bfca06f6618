"""One policy and the device that it plans for: what ``Engine.step`` does, told when things happen."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from scripts.simulation.policies import Policy, SplitFuse

StepSeconds = Callable[[StepPlan], float]
"""What a step takes, from its beginning on the device until its tokens are read."""
DUMMY = 0
"""The token that everything samples."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    end: float


class Replica:
    """Takes sequences when it plans, which is when a step has ended, or at once while it has nothing to do.

    The next plan is made and follows on the device, then the one before it is awaited and completed. Planning takes no
    time.
    """

    def __init__(self, policy: Policy, step_seconds: StepSeconds) -> None:
        self.policy = policy
        self.num_steps = 0
        self.unanswered = 0
        """Requests sent to it and not answered, as a router that sent them knows."""
        self.unbegun_tokens = 0
        """Prompt tokens of these whose first token has not come, as it knows too."""
        self._step_seconds = step_seconds
        self._inbox: list[Sequence] = []
        self._in_flight: deque[_InFlight] = deque()
        self._most_in_flight = 2 if policy.runs_ahead else 1

    @property
    def next_end(self) -> float:
        """When the oldest step in flight ends; infinite when none is."""
        return self._in_flight[0].end if self._in_flight else inf

    def send(self, sequence: Sequence) -> None:
        self._inbox.append(sequence)
        self.unanswered += 1
        self.unbegun_tokens += sequence.num_prompt

    def complete(self) -> list[Outcome]:
        """The oldest step in flight has ended."""
        plan = self._in_flight.popleft().plan
        outcomes = self.policy.complete(plan, [DUMMY] * plan.num_samples)
        for outcome in outcomes:
            self.unbegun_tokens -= outcome.sequence.num_prompt * (outcome.sequence.num_generated == 1)
            self.unanswered -= outcome.finish_reason is not None
        return outcomes

    def take(self, now: float) -> list[tuple[Sequence, RequestRefusedError]]:
        """Give the policy what was sent; returns what it refuses."""
        refused = []
        for sequence in self._inbox:
            try:
                self.policy.add(sequence, now)
            except RequestRefusedError as error:
                self.unanswered -= 1
                self.unbegun_tokens -= sequence.num_prompt
                refused.append((sequence, error))
        self._inbox.clear()
        return refused

    def plan(self, now: float) -> None:
        """Plan as many steps as may be in flight."""
        while len(self._in_flight) < self._most_in_flight:
            plan = self.policy.schedule(now)
            if not plan.chunks:
                return
            begin = self._in_flight[-1].end if self._in_flight else now
            self._in_flight.append(_InFlight(plan, begin + self._step_seconds(plan)))
            self.num_steps += 1

    def first_token(self, sequence: Sequence, now: float) -> float:
        """Return the seconds to the first token of a sequence, which is not changed, if it were sent now.

        As the server's own scheduler predicts it, behind the steps in flight and what was sent since the last plan.
        Raises TypeError for a policy that predicts nothing.
        """
        if not isinstance(self.policy, SplitFuse):
            raise TypeError(f"{type(self.policy).__name__} predicts no first token")
        under_way = self._in_flight[-1].end - now if self._in_flight else 0.0
        return self.policy.first_token(sequence, now, under_way, self._inbox)
