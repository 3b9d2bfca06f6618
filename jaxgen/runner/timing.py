"""Make up sequences of no caller, and time single steps."""

import time
from collections.abc import Iterable

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.interface import Runner
from jaxgen.runner.step import StepOutput


def made_up_sequence(
    row: int, prompt: tuple[int, ...], params: SamplingParams, *, blocks: Iterable[int] | None = None
) -> Sequence:
    """Return a sequence of no caller, the ``row``-th to arrive, that no EOS token ends.

    ``blocks``: block table of a sequence that is planned by hand, in row ``row``; None: a scheduler gives both.
    """
    sequence = Sequence(Request(f"made-up-{row}", prompt, params), eos_token_ids=frozenset(), arrival=row, seed=0)
    if blocks is not None:
        sequence.row, sequence.block_table = row, list(blocks)
    return sequence


def time_step(runner: Runner, plan: StepPlan, *, narrow: bool, again: bool = False) -> tuple[StepOutput, float]:
    """Run one step with nothing else on the device; return its output and seconds. Arguments as of ``Runner.run``."""
    runner.wait()
    started = time.perf_counter()
    output = runner.run(plan, narrow=narrow, again=again)
    runner.wait()
    return output, time.perf_counter() - started
