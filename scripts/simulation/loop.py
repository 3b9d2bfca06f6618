"""The discrete-event loop: replicas serve a load in virtual time; steps cost what a model of them says."""

from collections.abc import Sequence as Several
from math import inf

from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.step_time import StepTimeModel
from scripts.simulation.load import Due, Load
from scripts.simulation.policies import Policy
from scripts.simulation.record import Recorder
from scripts.simulation.replicas.replica import Replica, StepSeconds
from scripts.simulation.replicas.routers import RoundRobin, Router


def seconds_at(step_time: StepTimeModel) -> StepSeconds:
    """Steps take exactly what ``step_time`` says."""

    def seconds(plan: StepPlan) -> float:
        cost = step_time.narrow if step_time.narrow is not None and plan.decodes_only else step_time.wide
        return cost.seconds(plan.num_tokens, plan.num_positions, plan.num_contexts)

    return seconds


class Fleet:
    """Replicas behind a router, with one clock that jumps from event to event. Routing takes no time."""

    def __init__(self, policies: Several[Policy], step_seconds: StepSeconds, load: Load, router: Router) -> None:
        self.recorder = Recorder()
        self.replicas = [Replica(policy, step_seconds) for policy in policies]
        self._load = load
        self._router = router
        self._arrivals = 0

    @property
    def num_steps(self) -> int:
        return sum(replica.num_steps for replica in self.replicas)

    def run(self) -> Recorder:
        """Until all requests are answered. Raises RuntimeError if a policy leaves some without."""
        while (now := min(self._load.next_due, *(replica.next_end for replica in self.replicas))) < inf:
            self._advance(now)
        if self.recorder.num_live:
            raise RuntimeError(f"{self.recorder.num_live} requests are live, and the policy plans nothing for them")
        return self.recorder

    def _advance(self, now: float) -> None:
        """Steps that end together all end before anything is sent, and all is sent before anything is planned: so
        replicas that do the same stay alike."""
        ended = [replica for replica in self.replicas if replica.next_end <= now]
        for replica in ended:
            self._complete(replica, now)
        for due in self._load.take(now):
            self._send(due, now)
        for replica in self.replicas:
            if replica.next_end == inf or replica in ended:
                for sequence, error in replica.take(now):
                    self._load.ended(now, self.recorder.refuse(sequence.request_id, now, error))
                replica.plan(now)

    def _complete(self, replica: Replica, now: float) -> None:
        for outcome in replica.complete():
            request_id = outcome.sequence.request_id
            if outcome.token is not None:
                self.recorder.token(request_id, now)
            if outcome.finish_reason is not None:
                self._load.ended(now, self.recorder.end(request_id, now))

    def _send(self, due: Due, now: float) -> None:
        request_id = self.recorder.begin(due)
        request = due.request.to_request(request_id, due.request.prompt(self._arrivals))
        sequence = Sequence(request, eos_token_ids=frozenset(), arrival=self._arrivals, seed=0)
        self._arrivals += 1
        self._router.choose(sequence, self.replicas, now).send(sequence)


class Simulation(Fleet):
    """One replica, to which everything is sent."""

    def __init__(self, policy: Policy, step_seconds: StepSeconds, load: Load) -> None:
        super().__init__([policy], step_seconds, load, RoundRobin())
