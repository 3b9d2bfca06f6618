"""Build an engine: compile and warm up its runner, measure the links to host memory, and join its parts."""

from collections.abc import Iterable
from pathlib import Path

from jaxgen.cache.block_log import BlockEventSink
from jaxgen.core.config import EngineConfig
from jaxgen.core.identity import UNKNOWN, Identity
from jaxgen.core.model_config import ModelConfig
from jaxgen.engine.engine import Engine
from jaxgen.engine.observer import Observer
from jaxgen.engine.offloading import NO_OFFLOAD
from jaxgen.engine.start.join import join_engine
from jaxgen.engine.start.runners import Compiled, compile_for, make_runner, start_runner
from jaxgen.engine.start.warm_up import warm_up
from jaxgen.models.model import PackedParams
from jaxgen.offload.build import build_offload
from jaxgen.runner.compilation import num_compilations
from jaxgen.scheduling.drafts import Drafter


def build_engine(
    model: ModelConfig,
    config: EngineConfig,
    params: PackedParams,
    eos_token_ids: frozenset[int],
    *,
    compiled: Compiled | None = None,
    identity: Identity = UNKNOWN,
    events: BlockEventSink | None = None,
    observers: Iterable[Observer] = (),
    findings: Path | None = None,
    jumps: bool = True,
    drafter: Drafter | None = None,
) -> Engine:
    """Compile the step unless ``compiled`` is given, pack the parameters that its kernels read packed, and warm up.

    Other parameters are not copied, unless the cache is streamed: then all parameters of the layers are, and
    ``params`` is emptied. ``identity``: what its bits depend on; empty where nobody asks. ``events``: gets which
    contents blocks of the cache come to hold and give up. ``observers``: others than the engine's own.
    ``findings``: as for ``warm_up``. ``jumps``: tokens that may follow alone under a grammar are not sampled, which
    changes no answer. ``drafter``: replaces the one of ``config.speculation``.
    """
    runner = make_runner(model, config, params, compiled or compile_for(model, config))
    step_time = warm_up(runner, model, config, findings)
    start_runner(runner, model, config)
    offload = build_offload(model, config, runner, step_time, identity.kv_namespace) or NO_OFFLOAD
    return join_engine(
        model,
        config,
        runner,
        step_time,
        eos_token_ids,
        offload=offload,
        identity=identity,
        events=events,
        observers=observers,
        jumps=jumps,
        drafter=drafter,
        num_compilations=num_compilations,
    )
