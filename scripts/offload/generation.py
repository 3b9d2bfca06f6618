"""Batches of random prompts, decoded in lock step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.step_plan import StepPlan
from jaxgen.layerwise.links import Links
from jaxgen.layerwise.rates import Split
from jaxgen.runner.step import StepOutput
from jaxgen.runner.timing import made_up_sequence
from jaxgen.scheduling.scheduler import Scheduler
from scripts.offload.settings import Setting

Steps = Callable[[Sequence[StepPlan]], Sequence[StepOutput | None]]
"""A plan of each batch -> what their steps put out."""


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

    def __init__(self, setting: Setting, prompt: int, length: int, batch: int, column: int) -> None:
        config = setting.config()
        self.scheduler = Scheduler(config.scheduler, config.cache)
        self.size, self.prompt, self.length = batch, prompt, length
        draw = np.random.default_rng(column)
        self.sequences = []
        max_tokens = length + setting.prompt_steps(prompt, batch)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        for index in range(batch):
            ids = tuple(draw.integers(3, setting.model.vocab_size, size=prompt).tolist())
            self.sequences.append(made_up_sequence(index, ids, params))
            self.scheduler.add(self.sequences[-1])

    def decodes(self, plan: StepPlan) -> bool:
        """Whether all of its sequences do."""
        return len(plan.chunks) == self.size == plan.num_tokens

    def complete(self, plan: StepPlan, output: StepOutput | None) -> None:
        assert output is not None, "no batch ends before the others"
        found = np.asarray(output.tokens)
        self.scheduler.complete(plan, [int(found[i]) for i, chunk in enumerate(plan.chunks) if chunk.samples])

    @property
    def tokens(self) -> list[list[int]]:
        return [one.tokens[self.prompt : self.prompt + self.length] for one in self.sequences]


def decode(
    step: Steps, batches: Sequence[Batch], length: int, each: Callable[[], None], ready: Callable[[], None]
) -> tuple[list[list[int]], list[float]]:
    """Tokens, and the seconds of each of ``length`` steps in which all decode. ``ready`` is called before the first,
    ``each`` after every one of them."""
    seconds: list[float] = []
    while len(seconds) < length:
        plans = [batch.scheduler.schedule() for batch in batches]
        decodes = all(batch.decodes(plan) for batch, plan in zip(batches, plans, strict=True))
        if decodes and not seconds:
            ready()
        started = time.perf_counter()
        outputs = step(plans)
        for batch, plan, output in zip(batches, plans, outputs, strict=True):
            batch.complete(plan, output)
        if decodes:
            seconds.append(time.perf_counter() - started)
            each()
    return [tokens for batch in batches for tokens in batch.tokens], seconds


def nothing() -> None:
    pass


def generate(
    step: Callable[[StepPlan], StepOutput],
    setting: Setting,
    prompt: int,
    length: int,
    batch: int,
    each: Callable[[], None] = nothing,
    column: int = 0,
) -> tuple[list[list[int]], list[float]]:
    """Decode one batch of random prompts for ``length`` steps: as ``decode``. ``column``: which prompts."""
    return decode(
        lambda plans: [step(plans[0])], [Batch(setting, prompt, length, batch, column)], length, each, nothing
    )


@dataclass(frozen=True)
class Runner:
    """Streams batches by ``step``, with the split that ``use`` sets; after ``wait`` all that is full is on the host."""

    step: Steps
    use: Callable[[Split], None]
    wait: Callable[[], None]
    links: Links

    def run(self, setting: Setting, case: tuple[int, int, int, int], split: Split, link: float | None) -> Generation:
        """Decode ``case``, that is prompt, length, batch and the number of batches, over a link of ``link`` bytes a
        second; the prompts are computed without it."""
        prompt, length, batch, columns = case
        asked: list[tuple[int, int]] = []
        idle = 0.0

        def noted(tokens: int) -> int:
            asked.append((tokens, split(tokens)))
            return asked[-1][1]

        def ready() -> None:
            nonlocal idle
            self.wait()
            self.links.simulate(link)
            idle = self.links.idle_seconds

        self.use(noted)
        self.links.simulate(None)
        batches = [Batch(setting, prompt, length, batch, column) for column in range(columns)]
        tokens, seconds = decode(self.step, batches, length, nothing, ready)
        streamed = asked[-len(seconds) * columns :: columns]
        return Generation(tokens, seconds, streamed, self.links.idle_seconds - idle)
