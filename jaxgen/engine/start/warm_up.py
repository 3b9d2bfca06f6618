"""Prepare an engine's device before the first request."""

import logging
from dataclasses import replace
from pathlib import Path

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.start.findings import Findings, read_findings, write_findings
from jaxgen.engine.start.finite import check_finite
from jaxgen.engine.start.narrow import NarrowResult, compare
from jaxgen.engine.start.step_time_probe import measure_step_time
from jaxgen.runner.interface import Runner
from jaxgen.scheduling.step_time import StepTimeEstimator

logger = logging.getLogger(__name__)

MOST_SLOW_STARTS = 2
"""Starts that must find a narrow program a little too slow before no start times it again."""


def warm_up(
    device: Runner, model: ModelConfig, config: EngineConfig, findings: Path | None = None
) -> StepTimeEstimator:
    """Run each program once, and return an estimate of the time of steps. Use the narrow program if that is right.

    ``findings``: the file of what an earlier start of the same engine on the same device found out. That is not found
    out again; the file is written if there is none. None: nothing is kept. A narrow program that was a little too slow
    is timed once more at the next start, as the machine may have been busy. Raises ConfigError for a model whose logits
    are not finite.
    """
    device.run(StepPlan(()))
    known = read_findings(findings)
    if known is None:
        known = _find_out(device, model, config)
        write_findings(findings, known)
    elif known.narrow is not None and known.narrow.may_be_chance and known.slow_starts < MOST_SLOW_STARTS:
        known = _time_again(device, model, config, known)
        write_findings(findings, known)
    elif known.narrow is not None:
        _choose(device, config, known.narrow, "an earlier start found")
        if known.narrow.use_narrow:
            device.run(StepPlan(()), narrow=True)
    device.reset()
    return known.times.estimator(config)


def _find_out(device: Runner, model: ModelConfig, config: EngineConfig) -> Findings:
    """Check and measure; the device uses the narrow program afterwards if that is right. Raises ConfigError."""
    check_finite(device, model, config)
    narrow = None
    if config.narrow_width is not None:
        narrow = compare(device, model, config)
        _choose(device, config, narrow, "measured")
    too_slow = narrow is not None and not narrow.use_narrow
    return Findings(narrow, measure_step_time(device, config), slow_starts=int(too_slow))


def _time_again(device: Runner, model: ModelConfig, config: EngineConfig, before: Findings) -> Findings:
    """Compare the narrow program once more, which an earlier start found too slow."""
    narrow = compare(device, model, config)
    _choose(device, config, narrow, "measured again")
    if narrow.use_narrow:
        return Findings(narrow, measure_step_time(device, config))
    return replace(before, narrow=narrow, slow_starts=before.slow_starts + 1)


def _choose(device: Runner, config: EngineConfig, narrow: NarrowResult, how: str) -> None:
    if not narrow.use_narrow:
        device.disable_narrow()
    logger.debug(
        "steps of decodes: a program of %d tokens takes %.0f %% of the time of that of %d, its bits %s: %s (%s)",
        config.narrow_width,
        100 * narrow.ratio,
        config.scheduler.token_budget,
        "agree" if narrow.equal else "differ",
        "used" if narrow.use_narrow else "not used",
        how,
    )
