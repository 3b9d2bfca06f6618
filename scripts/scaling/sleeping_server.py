"""jaxgen's server, scheduler and engine in front of a device that sleeps: ``-m scripts.scaling.sleeping_server PORT``.

Steps cost what FastGen's are calibrated to in scripts/simulation, its cache has as many blocks, and everything but the
device is what ``jaxgen serve`` runs.
"""

import sys
from typing import Any

import jaxgen.engine.engine
from jaxgen.core.config import DEFAULT_MAX_LOGIT_BIAS, CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxgen.core.model_info import ModelInfo
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.engine import Engine
from jaxgen.hardware.device_info import this_cpu
from jaxgen.model_choice import find_model
from jaxgen.runner.programs import CompiledStep
from jaxgen.server.app import create_app
from jaxgen.server.commands.listener import listen
from jaxgen.server.commands.serve import serve_app
from jaxgen.text.tokenizer import Tokenizer
from scripts.event_loop.text import MODEL
from scripts.peers.peer import SERVED_NAME
from scripts.scaling.device import SleepingRunner
from scripts.simulation.fastgen import BLOCK_SIZE, MAX_MODEL_LEN, MAX_NUM_SEQS, TOKEN_BUDGET
from scripts.simulation.loop import seconds_at
from scripts.simulation.replicas.replica import StepSeconds
from scripts.simulation.replicas.study import FASTGEN_BLOCKS, SETTING


def sleeping_engine(model: ModelConfig, config: EngineConfig, step_seconds: StepSeconds) -> Engine:
    """Return an engine whose device sleeps; nothing is compiled or loaded."""
    device = SleepingRunner(model, config, step_seconds)
    made: Any = jaxgen.engine.engine
    made.make_device = lambda *_: device  # the engine makes its device itself, from programs that are compiled
    return Engine(model, config, {}, frozenset(), compiled=object.__new__(CompiledStep))


def main() -> int:
    _, model = find_model(None, "float32", "xla", this_cpu(), None)
    scheduler = SchedulerConfig(TOKEN_BUDGET, MAX_NUM_SEQS, MAX_MODEL_LEN)
    config = EngineConfig(CacheConfig(BLOCK_SIZE, FASTGEN_BLOCKS), scheduler, 0, DEFAULT_MAX_LOGIT_BIAS)
    step_seconds = seconds_at(SETTING.step_time)
    info = ModelInfo(SERVED_NAME, MAX_MODEL_LEN, model.vocab_size)
    engine = AsyncEngine(info, Tokenizer.from_directory(MODEL), lambda: sleeping_engine(model, config, step_seconds))
    engine.start()
    return serve_app(engine, create_app(engine), listen("127.0.0.1", int(sys.argv[1])), shutdown_timeout=1).code


if __name__ == "__main__":
    sys.exit(main())
