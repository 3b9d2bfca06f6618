"""Decide whether the narrow program may replace the wide one: only if it gives the same bits here and is faster."""

import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import jax
import numpy as np

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.sampling_params import MAX_LOGPROBS, SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.runner.interface import Runner, StepArrays
from jaxgen.runner.timing import TimedStep, dummy_sequence, time_step
from jaxgen.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)

CHECKED_TOKENS = 512
"""Fewest tokens compared: sums in another order, rounded to bfloat16, changed the result of one token in 140."""
MIN_STEPS = 16
"""Fewest steps before times count: the first steps are slower."""
CLEARLY_FASTER = 0.95
"""Largest ratio of step times, narrow to wide, for which two programs are worth having."""
CLEARLY_SLOWER = 1.1
"""Smallest ratio that another measurement would not bring below ``CLEARLY_FASTER``."""


@dataclass(frozen=True, slots=True)
class NarrowResult:
    """Result of ``compare``: whether all bits agree, and the ratio of step times, narrow program to wide."""

    equal: bool
    ratio: float

    @property
    def use_narrow(self) -> bool:
        return self.equal and self.ratio <= CLEARLY_FASTER

    @property
    def may_be_chance(self) -> bool:
        """Whether the program was too slow by so little that it may be fast enough at another time."""
        return self.equal and CLEARLY_FASTER < self.ratio < CLEARLY_SLOWER


def compare(device: Runner, model: ModelConfig, config: EngineConfig) -> NarrowResult:
    """Decode as many random sequences as the narrow program takes with both programs, from the same state, and compare
    their outputs.

    Ends early if the narrow program would not be used. Leaves the device's cache and rows used: reset it after.
    """
    equal = True
    ratios: list[float] = []
    for step in steps_of_both(device, model, config):
        ratios.append(step.narrow.seconds / step.wide.seconds)
        equal = _same_bits(step.narrow.output, step.wide.output, step.rows)
        if not equal or (len(ratios) >= MIN_STEPS and median(ratios) > CLEARLY_FASTER):
            break
    return NarrowResult(equal, median(ratios) if ratios else 1.0)


@dataclass(frozen=True, slots=True)
class StepOfBoth:
    """The same decodes of ``rows`` sequences by both programs."""

    narrow: TimedStep
    wide: TimedStep
    rows: int


def steps_of_both(device: Runner, model: ModelConfig, config: EngineConfig) -> Iterator[StepOfBoth]:
    """Yield each step of decodes of as many random sequences as the narrow program takes, by both programs."""
    scheduler = Scheduler(config.scheduler, config.cache)
    for sequence in _sequences(model, config):
        scheduler.add(sequence)
    while scheduler.has_work:
        plan = scheduler.schedule()
        if not plan.decodes_only:
            output = device.run(plan)
        else:
            narrow = time_step(device, plan, narrow=True, again=True)
            # Input tokens are known on the host, so the second run starts from what the first started from.
            wide = time_step(device, plan, narrow=False)
            output = wide.output
            yield StepOfBoth(narrow, wide, len(plan.chunks))
        tokens = np.asarray(output.tokens)
        scheduler.complete(plan, tokens[: plan.num_samples].tolist())


def _sequences(model: ModelConfig, config: EngineConfig) -> list[Sequence]:
    """Return one random sequence per row, of random lengths up to a few blocks, as far as they fit with answers."""
    rows = config.narrow_width or config.scheduler.max_num_seqs
    steps = max(MIN_STEPS, -(-CHECKED_TOKENS // rows))
    room = min(config.scheduler.max_model_len, config.cache.num_blocks // rows * config.cache.block_size)
    answer = min(steps + 1, config.scheduler.max_model_len - 1)  # its first token comes with the prompt's step
    longest = max(1, min(3 * config.cache.block_size, room) - answer)
    generator = random.Random(0)
    params = SamplingParams(
        max_tokens=answer,
        temperature=0.0,
        ignore_eos=True,
        logprobs=MAX_LOGPROBS,
    )
    return [
        dummy_sequence(row, tuple(generator.choices(range(model.vocab_size), k=generator.randint(1, longest))), params)
        for row in range(rows)
    ]


def _same_bits(narrow: StepArrays, wide: StepArrays, num_rows: int) -> bool:
    """Whether tokens, log-probabilities and hidden states of the first ``num_rows`` rows, a token each, are equal."""

    def rows(output: StepArrays) -> list[bytes]:
        arrays = jax.tree.leaves((output.tokens, output.logprobs, output.hidden))
        return [np.asarray(array)[:num_rows].tobytes() for array in arrays]

    return rows(narrow) == rows(wide)
