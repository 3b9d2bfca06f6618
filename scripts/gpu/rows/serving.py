"""Time the same load end to end, by jaxgen's engine and by transformers' continuous batching: prompts of one length all
at once, answers of one length, greedy; random weights, since times do not depend on their values."""

import time
from importlib import import_module
from typing import Any

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import EngineConfig, EngineOptions
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.runner.model_runner import device_info
from jaxgen.runner.programs import compile_step
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.memory import resolve
from jaxgen.sizing.token_budget import default_budget
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.comparison import compared
from scripts.gpu.rows.kernels import BLOCK_SIZE, kernels_for
from scripts.gpu.rows.torch_attention import import_torch
from scripts.gpu.rows.work import ServingLoad
from tests.support.engines import run as run_requests

TRANSFORMERS_PAGE, TRANSFORMERS_BATCH = 256, 2048
"""Tokens of a block of transformers' cache by default, and most tokens of one of its steps."""


def jaxgen(bench: Bench) -> Run:
    """Time jaxgen's engine, without a server."""
    load = bench.sizes.serving
    config = serving_config(load, max(default_budget(device_info()).tokens, load.requests))
    kernels = kernels_for(bench)
    compiled = compile_step(load.model, config, kernels)
    engine = Engine(load.model, config, bench.shared.params_of(load.model, kernels), frozenset(), compiled=compiled)
    return lambda: _served(load, engine, kernels.name)


def _served(load: ServingLoad, engine: Engine, kernels: str) -> Measurement:
    params = SamplingParams(max_tokens=load.answer, temperature=0.0, ignore_eos=True)
    for seed in range(2):  # the first is not counted
        requests = [Request(f"{seed}-{i}", tuple(prompt), params) for i, prompt in enumerate(load.prompts(seed))]
        steps = engine.stats().steps
        started = time.perf_counter()
        events = run_requests(engine, requests)
        seconds = time.perf_counter() - started
    tokens = [sum(event.token is not None for event in answer) for answer in events.values()]
    stats, budget = engine.stats(), engine.config.scheduler.token_budget
    detail = {"kernels": kernels, "token_budget": budget, "steps": stats.steps - steps}
    detail["narrow_steps"] = stats.narrow_steps
    return _measurement(load, tokens, seconds, detail)


def serving_config(load: ServingLoad, budget: int) -> EngineConfig:
    """Return the configuration that a server would use, with blocks for exactly this load."""
    longest = load.prompt + load.answer + 1
    blocks = load.requests * -(-longest // BLOCK_SIZE)
    options = EngineOptions(
        max_model_len=longest,
        token_budget=budget,
        max_num_seqs=load.requests,
        block_size=BLOCK_SIZE,
        num_blocks=blocks,
        prefix_caching=False,
        seed=0,
    )
    size = CacheFormat.of(load.model, BLOCK_SIZE).block_bytes
    memory = DeviceMemory("gpu", 2 * blocks * size + 2**36)  # enough: blocks are given
    return resolve(options, load.model, memory, token_budget=budget, params_bytes=0)


@compared
def transformers_batch(bench: Bench) -> Measurement:
    """Time transformers' ``generate_batch``, from the first request's creation to the last token, without set-up."""
    load = bench.sizes.serving
    torch = import_torch()
    transformers: Any = import_module("transformers")  # here, not at the top: it looks for PyTorch on import
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model: Any = transformers.AutoModelForCausalLM.from_config(
            _transformers_config(transformers, load), dtype=getattr(torch, load.model.dtype)
        )
    model.eval()
    config = transformers.GenerationConfig(max_new_tokens=load.answer, do_sample=False, eos_token_id=-1, pad_token_id=0)
    model.generate(torch.tensor([load.prompts(0)[0]], device=device), generation_config=config)  # not counted
    started = time.perf_counter()
    pages = load.requests * (-(-(load.prompt + load.answer) // TRANSFORMERS_PAGE) + 1)
    limits = transformers.ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=TRANSFORMERS_BATCH)
    answers = list(
        model.generate_batch(
            load.prompts(1),
            generation_config=config,
            continuous_batching_config=limits,
            record_timestamps=True,
            progress_bar=False,
        ).values()
    )
    wall = time.perf_counter() - started
    seconds = max(max(one.timestamps) for one in answers) - min(one.created_time for one in answers)
    detail = {
        "seconds_with_set_up": wall,
        "attention": str(model.config._attn_implementation),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "on": device,
    }
    return _measurement(load, [len(one.generated_tokens) for one in answers], seconds, detail)


def _transformers_config(transformers: Any, load: ServingLoad) -> Any:
    model = load.model
    return transformers.LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=model.max_position,
        rms_norm_eps=model.norm.eps,
        tie_word_embeddings=model.head.tied,
    )


def _measurement(load: ServingLoad, tokens: list[int], seconds: float, detail: dict[str, Any]) -> Measurement:
    """Return the measurement. Raises RuntimeError unless every request got its whole answer."""
    if tokens != [load.answer] * load.requests:
        raise RuntimeError(f"answers have {sorted(set(tokens))} tokens, {len(tokens)} of {load.requests} came")
    result = {
        "requests": load.requests,
        "prompt_tokens": load.prompt,
        "answer_tokens": load.answer,
        "output_tokens_per_second": sum(tokens) / seconds,
        "tokens_per_second": (sum(tokens) + load.requests * load.prompt) / seconds,
    }
    return Measurement(seconds=seconds, detail=result | detail)
