"""The discrete-event loop: a policy serves a load in virtual time; steps cost what a model of them says."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.step_time import StepTimeModel
from scripts.simulation.load import Due, Load
from scripts.simulation.policies import Policy
from scripts.simulation.record import Recorder

StepSeconds = Callable[[StepPlan], float]
"""What a step takes, from its beginning on the device until its tokens are read."""
DUMMY = 0
"""The token that everything samples."""


def seconds_at(step_time: StepTimeModel) -> StepSeconds:
    """Steps take exactly what ``step_time`` says."""

    def seconds(plan: StepPlan) -> float:
        cost = step_time.narrow if step_time.narrow is not None and plan.decodes_only else step_time.wide
        return cost.seconds(plan.num_tokens, plan.num_positions, plan.num_contexts)

    return seconds


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    end: float


class Simulation:
    """One policy and the device that it plans for, with a clock that jumps from event to event.

    The policy takes sequences when it plans: when a step has ended, or at once while it has nothing to do. As
    ``Engine.step`` does, it plans the next step before the one before it is completed. Planning takes no time.
    """

    def __init__(self, policy: Policy, step_seconds: StepSeconds, load: Load) -> None:
        self.recorder = Recorder()
        self.num_steps = 0
        self._policy = policy
        self._step_seconds = step_seconds
        self._load = load
        self._arrivals = 0
        self._inbox: list[Sequence] = []
        self._in_flight: deque[_InFlight] = deque()
        self._most_in_flight = 2 if policy.runs_ahead else 1

    @property
    def _next_end(self) -> float:
        return self._in_flight[0].end if self._in_flight else inf

    def run(self) -> Recorder:
        """Until all requests are answered. Raises RuntimeError if the policy leaves some without."""
        while (now := min(self._load.next_due, self._next_end)) < inf:
            ended = self._next_end <= now
            if ended:
                self._complete(now)
            for due in self._load.take(now):
                self._inbox.append(self._begin(due))
            if ended or not self._in_flight:
                self._take(now)
                self._plan(now)
        if self.recorder.num_live:
            raise RuntimeError(f"{self.recorder.num_live} requests are live, and the policy plans nothing for them")
        return self.recorder

    def _begin(self, due: Due) -> Sequence:
        request_id = self.recorder.begin(due)
        request = due.request.to_request(request_id, due.request.prompt(self._arrivals))
        self._arrivals += 1
        return Sequence(request, eos_token_ids=frozenset(), arrival=self._arrivals - 1, seed=0)

    def _take(self, now: float) -> None:
        for sequence in self._inbox:
            try:
                self._policy.add(sequence, now)
            except RequestRefusedError as error:
                self._load.ended(now, self.recorder.refuse(sequence.request_id, now, error))
        self._inbox.clear()

    def _plan(self, now: float) -> None:
        while len(self._in_flight) < self._most_in_flight:
            plan = self._policy.schedule(now)
            if not plan.chunks:
                return
            begin = self._in_flight[-1].end if self._in_flight else now
            self._in_flight.append(_InFlight(plan, begin + self._step_seconds(plan)))
            self.num_steps += 1

    def _complete(self, now: float) -> None:
        plan = self._in_flight.popleft().plan
        for outcome in self._policy.complete(plan, [DUMMY] * plan.num_samples):
            request_id = outcome.sequence.request_id
            if outcome.token is not None:
                self.recorder.token(request_id, now)
            if outcome.finish_reason is not None:
                self._load.ended(now, self.recorder.end(request_id, now))
