"""Join an engine's parts on the host to a runner that is ready. Host only, no jax."""

import time
from collections.abc import Callable, Iterable
from functools import partial

from jaxgen.cache.block_log import BlockEventSink
from jaxgen.core.config import EngineConfig
from jaxgen.core.identity import UNKNOWN, Identity
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.block_events import NO_EVENTS, BlockEvents
from jaxgen.engine.constraints import ConstraintFollower
from jaxgen.engine.engine import Engine
from jaxgen.engine.intake import Intake
from jaxgen.engine.latency import LatencyMeter
from jaxgen.engine.observer import Observer, Observers
from jaxgen.engine.offloading import NO_OFFLOAD, Offloading
from jaxgen.engine.output_processor import OutputProcessor
from jaxgen.engine.recorder import Recorder
from jaxgen.engine.step_meter import StepMeter
from jaxgen.runner.interface import Runner
from jaxgen.scheduling.drafts import Drafter, DraftPlanner
from jaxgen.scheduling.prefill_limits import DEFAULT_LIMITS, GPU_LIMITS
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy
from jaxgen.scheduling.step_time import StepTimeEstimator
from jaxgen.speculation.drafters import drafter_of


def join_engine(
    model: ModelConfig,
    config: EngineConfig,
    runner: Runner,
    step_time: StepTimeEstimator,
    eos_token_ids: frozenset[int] = frozenset(),
    *,
    offload: Offloading = NO_OFFLOAD,
    identity: Identity = UNKNOWN,
    events: BlockEventSink | None = None,
    observers: Iterable[Observer] = (),
    jumps: bool = True,
    drafter: Drafter | None = None,
    num_compilations: Callable[[], int] = lambda: 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Engine:
    """Return the engine of a runner that is warm.

    ``num_compilations``: of the process so far. ``clock``: returns seconds. Other arguments as of ``build_engine``.
    """
    if model.states and config.cache.num_snapshots is None:
        raise ValueError("the model has states: CacheConfig.num_snapshots must be 0 or more, not None")
    block_events = NO_EVENTS if events is None else BlockEvents(events)
    limits = GPU_LIMITS if config.run_ahead else DEFAULT_LIMITS
    scheduler = Scheduler(
        config.scheduler,
        config.cache,
        policy=partial(ServicePolicy, step_times=step_time, limits=limits),
        tier=offload.tier,
        log=block_events.log,
        narrow=runner.uses_narrow(StepPlan(())),
        copies_blocks=runner.copies_blocks,
        drafts=_drafts(config, runner, drafter),
    )
    most_forced = config.scheduler.token_budget if jumps else 0  # more would not fit into the next step
    latencies = LatencyMeter()
    output = OutputProcessor(latencies)
    meter = StepMeter(config, runner, step_time, offload, num_compilations)
    recorder = Recorder(config, scheduler, meter.host_blocks, skips_padding=runner.kernels.skips_padding)
    return Engine(
        model,
        config,
        scheduler,
        runner,
        intake=Intake(model, config, eos_token_ids),
        follower=ConstraintFollower(scheduler, most_forced=most_forced, clock=clock),
        output=output,
        meter=meter,
        observers=Observers(meter, latencies, output, block_events, recorder, *observers),
        journal=recorder.journal,
        offload=offload,
        block_events=block_events,
        identity=identity,
        clock=clock,
    )


def _drafts(config: EngineConfig, runner: Runner, drafter: Drafter | None) -> DraftPlanner | None:
    """Return what adds drafts to the plans of this engine; None: nothing does."""
    if config.speculation is None:
        return None
    if config.run_ahead and runner.runs_ahead:
        raise ValueError("the engine has drafts: EngineConfig.run_ahead must be False")
    return DraftPlanner(
        drafter or drafter_of(config.speculation),
        config.scheduler,
        config.cache.block_size,
        narrow_width=config.narrow_width if runner.uses_narrow(StepPlan(())) else None,
    )
