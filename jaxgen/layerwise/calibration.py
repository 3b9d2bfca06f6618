"""Measure the time of steps that stream their context, without overlap of copies and computation."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from jaxgen.core.config import EngineConfig
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.layerwise.model_runner import LayerwiseRunner, Streaming
from jaxgen.layerwise.planning.rates import Split, StepSeconds, transfer_all
from jaxgen.runner.step import StepOutput
from jaxgen.runner.timing import dummy_sequence


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
    return Load(plan, tuple(block for sequence in sequences for block in sequence.blocks.ids(0, blocks)))


def time_steps(device: LayerwiseRunner, loads: Iterable[Load], *, steps: int, project: bool) -> list[StepSeconds]:
    """Time ``steps`` steps of each load that copy all of the context and, if ``project``, as many that project all.

    They take turns, so that a change of the machine's speed affects both. Each runs once before, untimed. The device is
    reset.
    """
    result: list[StepSeconds] = []
    splits: tuple[Split, ...] = (transfer_all, lambda tokens: tokens) if project else (transfer_all,)
    for load in loads:
        device.reset()
        device.fill(load.context)
        for step in range(1 + steps):
            for split in splits:
                device.streaming = Streaming(split)
                _, seconds = run_in_turn(device, load.plan, again=True)
                if step:
                    result.append(seconds)
    device.reset()
    return result


def run_in_turn(device: LayerwiseRunner, plan: StepPlan, *, again: bool = False) -> tuple[StepOutput, StepSeconds]:
    """Run a plan's step without overlap: a layer waits for all of its context, and the link waits for the layer.

    Return its output and where its time went. ``again``: the step is run once more, so blocks that it fills stay open.
    Raises what a copy raised.
    """
    before, started = device.stream.traffic, time.perf_counter()
    step = device.begin(plan)
    if again:
        step.filled = ()
    step.x.block_until_ready()
    waited = computing = 0.0
    for layer in range(device.num_layers):
        began = time.perf_counter()
        incoming = device.ask(step, layer)
        device.stream.wait(incoming)
        arrived = time.perf_counter()
        device.compute(step, layer, incoming)
        step.x.block_until_ready()
        waited, computing = waited + arrived - began, computing + time.perf_counter() - arrived
    output = device.end(step)
    output.tokens.block_until_ready()
    other = time.perf_counter() - started - waited - computing
    copied, size = device.stream.traffic.since(before), device.block_size
    projected = len(step.project) * size
    tokens = projected + len(step.transfer) * size
    return output, StepSeconds(tokens, projected, copied.copies, copied.num_bytes, copied.seconds, computing, other)


def _sequence(config: EngineConfig, row: int, blocks: int, length: int) -> Sequence:
    """Return a sequence of zeros, with a block table of blocks that belong to its row."""
    size = config.cache.block_size
    prompt = (0,) * (blocks * size + length)
    each = blocks + -(-length // size)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    return dummy_sequence(row, prompt, params, blocks=range(row * each, (row + 1) * each))
