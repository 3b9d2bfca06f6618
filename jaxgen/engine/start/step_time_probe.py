"""Measure the time of a device's steps before the first request."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxgen.core.config import EngineConfig
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Chunk
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.interface import Runner
from jaxgen.runner.timing import dummy_sequence, time_step
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeEstimator

REPEATS = 3
"""Times that a step is run. The least counts: the first is slower, and something may hold another up. Its delay would
be taken for the cost of its tokens or context, and extrapolated."""
LONG_SECONDS = 0.5
"""Once its times sum to this a step is not repeated. Delays are small compared with such a step, and a large model must
not start late."""
DEEP_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class StepSamples:
    """Steps that were measured, of the wide and of the narrow program."""

    wide: Sequence[StepSample]
    narrow: Sequence[StepSample]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "StepSamples":
        """Return the samples that ``dataclasses.asdict`` has told, and JSON has carried."""
        return cls(*(tuple(StepSample(**sample) for sample in values[name]) for name in ("wide", "narrow")))

    def estimator(self, config: EngineConfig) -> StepTimeEstimator:
        """Return an estimator that has seen these steps."""
        widths = config.scheduler.token_budget, self.wide, self.narrow, config.narrow_width or 0
        return StepTimeEstimator(*widths, floored=config.run_ahead)


def measure_step_time(device: Runner, config: EngineConfig) -> StepSamples:
    """Time steps of several sizes and contexts.

    Prompts fill the budget, a half and an eighth of it. Decodes are one, as many as the narrow program takes, and all
    rows. The last two steps come after a long context: a decode, and half a budget of a prompt.

    Without the last two, noise would be taken for the cost of attention, and extrapolated to long prompts. A prompt
    alone would not do: a decode reads K and V for one token, a prompt for all tokens of a step. Leaves the device's
    cache and rows used: reset it after.
    """
    budget = config.scheduler.token_budget
    longest = min(budget, config.scheduler.max_model_len - 1, config.cache.num_slots)
    rows = min(config.scheduler.max_num_seqs, config.cache.num_blocks)
    prompts = [_plan(config, 1, length) for length in prompt_lengths(longest)]
    counts = {1, min(rows, config.narrow_width or rows), rows}
    decodes = [_plan(config, count, 1) for count in sorted(counts)]
    if config.streaming is None:  # there blocks must have been written first
        decodes.append(_deep(config, 1))
        prompts.append(_deep(config, max(1, longest // 2)))
    wide = tuple(_time(device, plan, narrow=False) for plan in (*prompts, *decodes))
    narrow = tuple(_time(device, plan, narrow=True) for plan in decodes if device.uses_narrow(plan))
    return StepSamples(wide, narrow)


def prompt_lengths(longest: int) -> list[int]:
    """Return the lengths of the prompts to time: 2 tokens or more if ``longest`` allows, since 1 would be a decode."""
    return sorted({min(longest, max(2, length)) for length in (longest, longest // 2, longest // 8)})


def _plan(config: EngineConfig, count: int, length: int) -> StepPlan:
    """Return the plan of the first step of ``count`` prompts of ``length`` random tokens."""
    # Where prefixes are kept, a prompt would be cut for the snapshot of its state.
    scheduler = Scheduler(replace(config.scheduler, prefix_caching=False), config.cache)
    generator = random.Random(length)
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    for row in range(count):
        prompt = tuple(generator.choices(range(2), k=length))
        scheduler.add(dummy_sequence(row, prompt, params))
    return scheduler.schedule()


def _deep(config: EngineConfig, count: int) -> StepPlan:
    """Return the plan of the last ``count`` tokens of the longest context that fits, up to ``DEEP_TOKENS``; what is
    before them is zeros."""
    length = min(DEEP_TOKENS, config.scheduler.max_model_len - 1, config.cache.num_slots)
    blocks = range(-(-length // config.cache.block_size))
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    sequence = dummy_sequence(0, (0,) * length, params, blocks=blocks, window_blocks=config.cache.window_blocks)
    return StepPlan((Chunk(sequence, length - count, count),), (sequence,))


def _time(device: Runner, plan: StepPlan, *, narrow: bool) -> StepSample:
    """Return what a step takes: the least of several times, or of as many as are soon over."""
    seconds = [time_step(device, plan, narrow=narrow).seconds]
    while len(seconds) < REPEATS and sum(seconds) < LONG_SECONDS:
        seconds.append(time_step(device, plan, narrow=narrow).seconds)
    return StepSample(plan.num_tokens, plan.num_positions, min(seconds), plan.num_contexts)
