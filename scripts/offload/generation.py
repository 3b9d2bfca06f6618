"""A batch of random prompts, decoded in lock step."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.step import StepOutput
from jaxgen.runner.timing import dummy_sequence
from jaxgen.scheduling.scheduler import Scheduler
from scripts.offload.settings import Setting


@dataclass(frozen=True)
class Generation:
    """What was decoded: tokens of each sequence, and of each step in which all decoded the seconds, and how many tokens
    of a batch were streamed, and projected of these. ``idle_seconds``: of the device in these steps, as Links has it.
    """

    tokens: list[list[int]]
    seconds: list[float]
    streamed: list[tuple[int, int]]
    idle_seconds: float


class Batch:
    """Random prompts of one length, and their scheduler."""

    def __init__(self, setting: Setting, prompt: int, length: int, batch: int) -> None:
        config = setting.config()
        self.scheduler = Scheduler(config.scheduler, config.cache)
        self.size, self.prompt, self.length = batch, prompt, length
        draw = np.random.default_rng(0)
        self.sequences = []
        max_tokens = length + setting.prompt_steps(prompt, batch)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        for index in range(batch):
            ids = tuple(draw.integers(3, setting.model.vocab_size, size=prompt).tolist())
            self.sequences.append(dummy_sequence(index, ids, params))
            self.scheduler.add(self.sequences[-1])

    def decodes(self, plan: StepPlan) -> bool:
        """Whether all of its sequences do."""
        return len(plan.chunks) == self.size == plan.num_tokens

    def complete(self, plan: StepPlan, output: StepOutput) -> None:
        tokens = np.asarray(output.tokens)
        self.scheduler.complete(plan, tokens[: plan.num_samples].tolist())

    @property
    def tokens(self) -> list[list[int]]:
        return [one.tokens[self.prompt : self.prompt + self.length] for one in self.sequences]


def nothing() -> None:
    pass


def decode(
    step: Callable[[StepPlan], StepOutput], batch: Batch, ready: Callable[[], None] = nothing
) -> tuple[list[list[int]], list[float]]:
    """Return the tokens of each sequence, and the seconds of each step in which all decode.

    ``ready`` is called before the first of these.
    """
    seconds: list[float] = []
    while len(seconds) < batch.length:
        plan = batch.scheduler.schedule()
        decodes = batch.decodes(plan)
        if decodes and not seconds:
            ready()
        started = time.perf_counter()
        batch.complete(plan, step(plan))
        if decodes:
            seconds.append(time.perf_counter() - started)
    return batch.tokens, seconds
