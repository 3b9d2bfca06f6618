"""Small engines for tests: random tiny models, and a driver that runs requests to their end."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import jax
import numpy as np

from jaxgen.cache.block_log import BlockEventSink
from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import llama_config
from jaxgen.core.decoder_parts import RopeConfig
from jaxgen.core.identity import UNKNOWN, Identity
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.model_info import Pooling
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.model import PackedParams, abstract_params
from jaxgen.runner.programs import CompiledStep, compile_step
from tests.support.quantized import random_parts

EOS = 2
LLAMA = llama_config(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=1024,
    dtype="float32",
    norm_eps=1e-5,
    rope=RopeConfig(),
)


@cache
def params_of(model: ModelConfig) -> PackedParams:
    """Random parameters, in the formats of the model, so large that logits, and greedy tokens with them, vary.

    Drawn by numpy: a program that draws them would be compiled for each model.
    """
    rng, formats = np.random.default_rng(0), dict(model.weight_formats)

    def drawn(path: str, shape: tuple[int, ...]) -> np.ndarray:
        if path.endswith(".bias"):
            return np.zeros(shape)
        return np.ones(shape) if "norm" in path else rng.normal(scale=0.12, size=shape)

    return {
        path: random_parts(formats[path], leaf.shape, rng)
        if path in formats
        else jax.device_put(drawn(path, leaf.shape).astype(leaf.dtype))
        for path, leaf in abstract_params(model).items()
    }


def engine_config(
    *,
    token_budget: int = 16,
    max_num_seqs: int = 4,
    max_model_len: int = 256,
    block_size: int = 8,
    num_blocks: int = 64,
) -> EngineConfig:
    scheduler = SchedulerConfig(token_budget, max_num_seqs, max_model_len)
    return EngineConfig(CacheConfig(block_size, num_blocks), scheduler, seed=0, max_logit_bias=8)


def compiled_step(model: ModelConfig, config: EngineConfig, kernels: Kernels = REFERENCE) -> CompiledStep:
    """Made once for all configurations that differ in what no program knows of."""
    limits = config.scheduler
    scheduler = SchedulerConfig(limits.token_budget, limits.max_num_seqs, limits.max_model_len)
    return _compiled_step(model, replace(config, scheduler=scheduler, seed=None, offload=None, run_ahead=True), kernels)


_compiled_step = cache(compile_step)


def make_engine(
    model: ModelConfig = LLAMA,
    config: EngineConfig | None = None,
    kernels: Kernels = REFERENCE,
    *,
    identity: Identity = UNKNOWN,
    events: BlockEventSink | None = None,
) -> Engine:
    config = config or engine_config()
    compiled = compiled_step(model, config, kernels)
    return build_engine(
        model, config, params_of(model), frozenset({EOS}), compiled=compiled, identity=identity, events=events
    )


def request(name: str, prompt: Iterable[int], **params: object) -> Request:
    return Request(name, tuple(prompt), SamplingParams(**params))  # type: ignore[arg-type]


def embed(name: str, prompt: Iterable[int], pooling: Pooling = Pooling.MEAN) -> Request:
    return replace(request(name, prompt, max_tokens=0), pooling=pooling)


def run(
    engine: Engine, requests: Iterable[Request], each_step: Callable[[int], None] = lambda step: None
) -> dict[str, list[TokenEvent]]:
    """Add all requests, step until nothing is left, return the events of each."""
    for one in requests:
        engine.add(one)
    events: dict[str, list[TokenEvent]] = defaultdict(list)
    step = 0
    while engine.has_work:
        each_step(step)
        for event in engine.step():
            events[event.request_id].append(event)
        step += 1
        assert step < 10_000, "the engine does not come to an end"
    return events


def tokens(events: list[TokenEvent]) -> list[int]:
    return [event.token for event in events if event.token is not None]


def embeddings(events: dict[str, list[TokenEvent]]) -> dict[str, tuple[float, ...]]:
    """Of the requests that have one, each of which must have nothing else."""
    found = {}
    for name, of_one in events.items():
        if of_one[-1].embedding is not None:
            (event,) = of_one
            assert (event.token, event.finish_reason, event.cached_tokens) == (None, FinishReason.LENGTH, 0)
            found[name] = of_one[-1].embedding
    return found


def greedy(request: Request) -> Request:
    return replace(request, params=replace(request.params, temperature=0.0))


def full_blocks(engine: Engine) -> dict[bytes, int]:
    """Return the blocks that the prefix cache can share, by key: not those that were filled partly."""
    pool = engine.scheduler.pool
    return {key: block for key, block in pool._by_key.items() if block not in pool._partial}
