"""Make up sequences of no caller, and time single steps."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence, SequenceBlocks, WindowBlocks
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.interface import Runner, StepArrays


def dummy_sequence(
    row: int,
    prompt: tuple[int, ...],
    params: SamplingParams,
    *,
    blocks: Iterable[int] | None = None,
    window_blocks: Iterable[int] = (),
) -> Sequence:
    """Return a sequence of no caller, the ``row``-th to arrive, that no EOS token ends.

    ``blocks``: block table of a sequence that is planned by hand, in row ``row``; None: a scheduler gives both.
    ``window_blocks``: blocks of each further kind of cache, of which such a sequence takes one after another, again and
    again.
    """
    request = Request(f"made-up-{row}", prompt, params)
    new = partial(Sequence, request, eos_token_ids=frozenset(), arrival=row, seed=0)
    if blocks is None:
        return new()
    table = list(blocks)
    windows = [WindowBlocks([index % number for index in range(len(table))]) for number in window_blocks]
    return new(row=row, blocks=SequenceBlocks(table, windows=tuple(windows)))


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The output and times of one step. ``returned``: seconds until ``run`` returned to the host; ``seconds``: until
    the device was done."""

    output: StepArrays
    returned: float
    seconds: float


def time_step(runner: Runner, plan: StepPlan, *, narrow: bool | None = None, again: bool = False) -> TimedStep:
    """Run and time one step with nothing else on the device. Arguments as of ``Runner.run``.

    ``again``: the same plan will be run once more, from the same state.
    """
    with runner.rehearsal() if again else nullcontext():
        runner.wait()
        started = perf_counter()
        output = runner.run(plan, narrow=narrow)
        returned = perf_counter()
        runner.wait()
        return TimedStep(output, returned - started, perf_counter() - started)
