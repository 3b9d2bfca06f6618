"""Time single steps of sequences made up for that, before the first request."""

import time

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.interface import Runner
from jaxgen.runner.step import StepOutput


def made_up_sequence(row: int, prompt: tuple[int, ...], params: SamplingParams) -> Sequence:
    """Return a sequence of no caller, the ``row``-th to arrive."""
    return Sequence(Request(f"made-up-{row}", prompt, params), eos_token_ids=frozenset(), arrival=row, seed=0)


def time_step(runner: Runner, plan: StepPlan, *, narrow: bool, again: bool = False) -> tuple[StepOutput, float]:
    """Run one step with nothing else on the device; return its output and seconds. Arguments as of ``Runner.run``."""
    runner.wait()
    started = time.perf_counter()
    output = runner.run(plan, narrow=narrow, again=again)
    runner.wait()
    return output, time.perf_counter() - started
