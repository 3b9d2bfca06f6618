"""Measure the time of steps that stream their context, without overlap of copies and computation."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxgen.core.config import EngineConfig
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.layerwise.model_runner import LayerwiseRunner, Streaming
from jaxgen.layerwise.rates import Split, StepSeconds, transfer_all
from jaxgen.runner.timing import made_up_sequence


@dataclass(frozen=True)
class Load:
    """A step, and the blocks that it reads from host memory, with any content."""

    plan: StepPlan
    context: tuple[int, ...]


def load_of(config: EngineConfig, *, rows: int = 1, blocks: int, length: int = 1) -> Load:
    """Return a step with a chunk of ``length`` tokens, after ``blocks`` full blocks, of each of ``rows`` sequences."""
    sequences = [_sequence(config, row, blocks, length) for row in range(rows)]
    start = blocks * config.cache.block_size
    plan = StepPlan(tuple(Chunk(sequence, start, length) for sequence in sequences), tuple(sequences))
    return Load(plan, tuple(block for sequence in sequences for block in sequence.block_table[:blocks]))


def time_steps(device: LayerwiseRunner, loads: Iterable[Load], *, steps: int, project: bool) -> list[StepSeconds]:
    """Time ``steps`` steps of each load that copy all of the context and, if ``project``, as many that project all.

    They take turns, so that a change of the machine's speed affects both. Each runs once before, untimed. The device is
    reset, and left to stream without overlap. It times copies and computation apart, where ``time_step`` would give
    their sum.
    """
    found: list[StepSeconds] = []
    splits: tuple[Split, ...] = (transfer_all, lambda tokens: tokens) if project else (transfer_all,)
    for load in loads:
        device.reset()
        device.fill(load.context)
        for step in range(1 + steps):
            for split in splits:
                device.streaming = Streaming(split, overlap=False)
                device.run(load.plan, again=True)
                assert device.seconds is not None, "there is no overlap"
                if step:
                    found.append(device.seconds)
    device.reset()
    return found


def _sequence(config: EngineConfig, row: int, blocks: int, length: int) -> Sequence:
    """Return a sequence of zeros, with a block table of blocks that belong to its row."""
    size = config.cache.block_size
    prompt = (0,) * (blocks * size + length)
    each = blocks + -(-length // size)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    return made_up_sequence(row, prompt, params, blocks=range(row * each, (row + 1) * each))
