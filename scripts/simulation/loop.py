"""The discrete-event loop: a policy serves a load in virtual time; steps cost what a model of them says."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.step_time import StepTimeModel
from scripts.simulation.load import Load
from scripts.simulation.policies import Policy
from scripts.simulation.record import Recorder

StepSeconds = Callable[[StepPlan], float]
"""What a step takes, from its beginning on the device until its tokens are read."""
DUMMY = 0
"""The token that everything samples, and that prompts are made of."""


def seconds_at(step_time: StepTimeModel) -> StepSeconds:
    """Steps take exactly what ``step_time`` says."""

    def seconds(plan: StepPlan) -> float:
        cost = step_time.narrow if step_time.narrow is not None and plan.decodes_only else step_time.wide
        return cost.seconds(plan.num_tokens, plan.num_positions)

    return seconds


@dataclass(frozen=True, slots=True)
class _InFlight:
    plan: StepPlan
    end: float


class Simulation:
    """What ``Engine.step`` does, with a clock that jumps: the next plan is made and follows on the device, then the one
    before it is awaited and completed. Planning takes no time."""

    def __init__(self, policy: Policy, step_seconds: StepSeconds, load: Load) -> None:
        self.recorder = Recorder()
        self.num_steps = 0
        self.clock = 0.0
        self._policy = policy
        self._step_seconds = step_seconds
        self._load = load
        self._in_flight: _InFlight | None = None
        self._arrivals = 0

    def run(self) -> Recorder:
        """Until all requests are answered. Raises RuntimeError if the policy leaves some without."""
        while self._step():
            pass
        if self.recorder.num_live:
            raise RuntimeError(f"{self.recorder.num_live} requests are live, and the policy plans nothing for them")
        return self.recorder

    def _step(self) -> bool:
        """False: nothing is left to do."""
        self._take_arrivals()
        before, self._in_flight = self._in_flight, None
        if before is None or self._policy.runs_ahead:
            self._dispatch(self.clock if before is None else before.end)
        if before is not None:
            self._complete(before)
        elif self._in_flight is None:
            if self._load.next_due == inf:
                return False
            self.clock = self._load.next_due
        return True

    def _take_arrivals(self) -> None:
        for due in self._load.take(self.clock):
            request_id = self.recorder.begin(due)
            request = due.request.to_request(request_id, (DUMMY,) * due.request.prompt_tokens)
            sequence = Sequence(request, eos_token_ids=frozenset(), arrival=self._arrivals, seed=0)
            self._arrivals += 1
            try:
                self._policy.add(sequence, self.clock)
            except RequestRefusedError as error:
                self._load.ended(self.clock, self.recorder.refuse(request_id, self.clock, error))

    def _dispatch(self, device_free: float) -> None:
        plan = self._policy.schedule(self.clock)
        if plan.chunks:
            self.num_steps += 1
            self._in_flight = _InFlight(plan, device_free + self._step_seconds(plan))

    def _complete(self, step: _InFlight) -> None:
        self.clock = step.end
        for outcome in self._policy.complete(step.plan, [DUMMY] * step.plan.num_samples):
            request_id = outcome.sequence.request_id
            if outcome.token is not None:
                self.recorder.token(request_id, self.clock)
            if outcome.finish_reason is not None:
                self._load.ended(self.clock, self.recorder.end(request_id, self.clock))
