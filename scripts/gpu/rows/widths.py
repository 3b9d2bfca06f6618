"""Compare a step's program of few tokens with one of many: the bits of the same decodes, and the time of both."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from jaxgen.engine.start.narrow import StepOfBoth, steps_of_both
from jaxgen.runner.interface import StepArrays
from jaxgen.runner.model_runner import ModelRunner
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench, Options
from scripts.gpu.rows.kernels import kernels_for
from scripts.gpu.rows.step_times import step_config
from scripts.gpu.rows.work import StepLoad


def compare(bench: Bench, load: StepLoad, widths: tuple[int, int], rows: int, options: Options) -> Run:
    """Count the rows whose bits differ. ``widths``: tokens of both programs, fewer first; ``rows``: of the wide one."""
    narrow, wide = widths
    config = replace(step_config(load, wide, rows), narrow_width=narrow)
    kernels = kernels_for(bench, model=load.model)
    params = bench.shared.params_of(load.model, kernels)
    device = ModelRunner(load.model, config, params, bench.shared.compiled_step(load.model, config, kernels, options))

    def run() -> Measurement:
        steps = list(steps_of_both(device, load.model, config))
        detail: dict[str, Any] = {
            "compared_rows": sum(step.rows for step in steps),
            "rows_with_other_hidden_states": _unequal(steps, lambda output: output.hidden),
            "rows_with_other_logprobs": _unequal(steps, lambda output: output.logprobs.top_values),
            "wide_seconds": median(step.wide.seconds for step in steps),
            "compiler_options": dict(options),
        }
        return Measurement(seconds=median(step.narrow.seconds for step in steps), detail=detail)

    return run


def _unequal(steps: Sequence[StepOfBoth], part: Callable[[StepArrays], Any]) -> int:
    """Return the number of rows whose bytes differ in this part of the outputs."""
    result = 0
    for step in steps:
        narrow, wide = (
            np.ascontiguousarray(part(one.output))[: step.rows].view(np.uint8) for one in (step.narrow, step.wide)
        )
        result += int((narrow != wide).any(axis=1).sum())
    return result
