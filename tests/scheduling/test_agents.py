"""Conversations of several turns over one system prompt: no token of a prompt is computed twice."""

import random

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import policy_with

SYSTEM, ANSWER, TURNS, AGENTS = 500, 30, 4, 4
STEP_TIME = StepTimeModel(96, LinearCost(0.0075, 0.00045, 2e-8))


class Conversations:
    """Agents whose next turn begins when the last one is answered. Steps take what ``STEP_TIME`` says."""

    def __init__(self, seed: int, arrivals: list[float]) -> None:
        self.rng, self.now, self.computed, self.asked = random.Random(seed), 0.0, 0, 0
        config = SchedulerConfig(STEP_TIME.token_budget, 16, 4096)
        cache = CacheConfig(block_size=64, num_blocks=256)
        self.scheduler = Scheduler(config, cache, policy=policy_with(STEP_TIME), copies_blocks=True)
        system = self.tokens(SYSTEM)
        self.texts = [list(system) for _ in arrivals]
        self.due = dict(enumerate(arrivals))
        self.turns = dict.fromkeys(self.due, 0)
        self.number = 0

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(4, 8000) for _ in range(count)]

    def begin(self, agent: int) -> None:
        new = self.tokens(self.rng.randrange(20, 400))  # shorter ones are due sooner
        self.asked += len(new)
        self.texts[agent] += new
        params = SamplingParams(max_tokens=ANSWER, ignore_eos=True, temperature=0.0)
        request = Request(f"{agent}-{self.turns[agent]}", tuple(self.texts[agent]), params)
        sequence = Sequence(request, eos_token_ids=frozenset(), arrival=self.number, seed=0)
        self.number += 1
        self.scheduler.add(sequence, self.now)

    def run(self) -> None:
        while self.scheduler.has_work or self.due:
            if not self.scheduler.has_work:
                self.now = max(self.now, min(self.due.values()))
            for agent in [agent for agent, when in self.due.items() if when <= self.now]:
                del self.due[agent]
                self.begin(agent)
            plan = self.scheduler.schedule(self.now)
            self.now += STEP_TIME.wide.seconds(plan.num_tokens, plan.num_positions, plan.num_contexts)
            self.computed += plan.num_tokens
            for outcome in self.scheduler.complete(plan, self.tokens(plan.num_samples)):
                if outcome.finish_reason is not None:
                    agent = int(outcome.sequence.request_id.partition("-")[0])
                    self.texts[agent] = list(outcome.sequence.tokens)
                    self.turns[agent] += 1
                    if self.turns[agent] < TURNS:
                        self.due[agent] = self.now + self.rng.random() / 10


@pytest.mark.parametrize("seed", range(4))
def test_each_token_is_computed_once_whenever_requests_come(seed: int) -> None:
    """But for the rest of a block that one computes while another needs its beginning."""
    rng = random.Random(seed)
    load = Conversations(seed, [rng.random() / 5 for _ in range(AGENTS)])
    load.run()
    once = SYSTEM + load.asked + AGENTS * (TURNS * ANSWER - 1)  # a conversation's last token is never computed
    assert once <= load.computed <= once + 64 * (AGENTS - 1)
    assert load.scheduler.counters.prefix_hits >= AGENTS * (TURNS - 1) * SYSTEM
