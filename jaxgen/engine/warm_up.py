"""What an engine does with its device before the first request."""

import logging

from jaxgen.core.config import EngineConfig, ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.finite import check_finite
from jaxgen.engine.narrow import compare
from jaxgen.engine.step_time_probe import measure_step_time
from jaxgen.runner.interface import Runner
from jaxgen.scheduling.step_time import StepTimeEstimator

logger = logging.getLogger(__name__)


def warm_up(device: Runner, model: ModelConfig, config: EngineConfig) -> StepTimeEstimator:
    """Run each program once, check that logits are finite, decide whether the narrow program may be used, and measure
    the time of steps.

    Raises ConfigError for a model whose logits are not finite.
    """
    device.run(StepPlan(()))
    check_finite(device, model, config)
    if config.narrow_width is not None:
        verdict = compare(device, model, config)
        if not verdict.use_narrow:
            device.disable_narrow()
        logger.info(
            "steps of decodes: a program of %d tokens takes %.0f %% of the time of that of %d, its bits %s: %s",
            config.narrow_width,
            100 * verdict.ratio,
            config.scheduler.token_budget,
            "agree" if verdict.equal else "differ",
            "used" if verdict.use_narrow else "not used",
        )
    step_time = measure_step_time(device, config)
    device.reset()
    return step_time
