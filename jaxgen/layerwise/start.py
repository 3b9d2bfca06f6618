"""Start a runner that streams its cache: measure rates, choose how contexts are copied, and compare projected bits."""

import logging
import random
from collections.abc import Iterator

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import EngineConfig, OffloadPolicy, StreamConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Chunk
from jaxgen.core.step_plan import StepPlan
from jaxgen.layerwise.calibration import Load, load_of, time_steps
from jaxgen.layerwise.model_runner import LayerwiseRunner, Streaming
from jaxgen.layerwise.planning.layer_store import StreamedBlock
from jaxgen.layerwise.planning.meter import StreamMeter
from jaxgen.layerwise.planning.rates import StreamRates, transfer_all
from jaxgen.offload.planning.restore_plan import ContextCost
from jaxgen.runner.timing import dummy_sequence

logger = logging.getLogger(__name__)

CHECKED_TOKENS = 512
"""Tokens whose K and V are compared in every layer; as narrow.CHECKED_TOKENS."""
MEASURED_STEPS = 5
"""Steps measured for each load and split."""


def start_streaming(device: LayerwiseRunner, model: ModelConfig, config: EngineConfig, streaming: StreamConfig) -> None:
    """Measure the device, and set it to stream by the policy. Leaves it reset."""
    exact = not streaming.keep_inputs or _projection_is_exact(device, model, config)
    device.meter = _measure(device, model, config, streaming)
    device.streaming = _streaming(device.meter, streaming)
    logger.info(
        "KV cache in host memory: %d blocks, of which a step brings what it reads; %s%s",
        config.cache.num_blocks,
        streaming.policy if streaming.keep_inputs else "all as K and V",
        "" if device.meter is None else f"; {device.meter.decodes.bytes_per_second / 1e9:.2f} GB/s to the device",
    )
    if not exact:
        logger.warning(
            "K and V that are computed from layer inputs differ from those of a step by rounding here: answers depend "
            "on how much is computed, within the tolerance of %s (--kv-offload-policy transfer keeps all bits)",
            model.dtype,
        )


def _streaming(meter: StreamMeter | None, streaming: StreamConfig) -> Streaming:
    policy: OffloadPolicy = streaming.policy if streaming.keep_inputs else "transfer"
    if policy == "recompute":
        return Streaming(lambda tokens: tokens)
    if policy == "transfer" or meter is None:
        return Streaming(transfer_all)
    return Streaming(
        lambda tokens: meter.plan(tokens, decodes=True).project,
        prompts=lambda tokens: meter.plan(tokens, decodes=False).project,
    )


def _measure(
    device: LayerwiseRunner, model: ModelConfig, config: EngineConfig, streaming: StreamConfig
) -> StreamMeter | None:
    """Measure the rates of steps. Return None if no sequence is longer than a block: then nothing is streamed."""
    cost = ContextCost.of(CacheFormat.of_cache(model, config.cache).of_layer)
    decodes, prompts = list(_decodes(config, streaming.group)), list(_prompts(config, streaming.group))
    if not decodes or not prompts:
        return None
    of_decodes, of_prompts = (
        time_steps(device, loads, steps=MEASURED_STEPS, project=streaming.keep_inputs) for loads in (decodes, prompts)
    )
    return StreamMeter(
        StreamRates.fit(of_decodes, device.num_contexts, others=of_prompts),
        StreamRates.fit(of_prompts, device.num_contexts, others=of_decodes),
        cost,
        streaming.group * config.cache.block_size,
    )


def _decodes(config: EngineConfig, group: int) -> Iterator[Load]:
    """Yield steps of decodes in as many rows as fit: one reads a block per row, one two groups of blocks in total."""
    scheduler, cache = config.scheduler, config.cache
    rows = min(scheduler.max_num_seqs, cache.num_blocks // 2)
    if rows == 0:
        return
    most = min((scheduler.max_model_len - 1) // cache.block_size, cache.num_blocks // rows - 1)
    for blocks in sorted({min(1, most), min(-(-2 * group // rows), most)} - {0}):
        yield load_of(config, rows=rows, blocks=blocks)


def _prompts(config: EngineConfig, group: int) -> Iterator[Load]:
    """Yield steps of one prompt chunk after one block and after two groups; it fills the budget or the sequence."""
    scheduler, cache = config.scheduler, config.cache
    longest = min(scheduler.max_model_len, cache.num_slots)
    most = (longest - 1) // cache.block_size
    for blocks in sorted({min(1, most), min(2 * group, most)} - {0}):
        length = min(scheduler.token_budget, longest - blocks * cache.block_size)
        yield load_of(config, blocks=blocks, length=length)


def _projection_is_exact(device: LayerwiseRunner, model: ModelConfig, config: EngineConfig) -> bool:
    """Whether K and V of a random prompt, projected from layer inputs, have the bits that its steps wrote."""
    size, budget = config.cache.block_size, config.scheduler.token_budget
    longest = min(config.scheduler.max_model_len, config.cache.num_slots)
    length = min(max(CHECKED_TOKENS, size), longest)
    draw = random.Random(0)
    prompt = tuple(draw.choices(range(model.vocab_size), k=length))
    sequence = dummy_sequence(0, prompt, SamplingParams(max_tokens=1), blocks=range(-(-length // size)))
    for start in range(0, length, budget):
        chunk = Chunk(sequence, start, min(budget, length - start))
        device.run(StepPlan((chunk,), () if start else (sequence,)))
    device.wait()
    exact = device.projects_to_bits(StreamedBlock(block, block * size) for block in range(length // size))
    device.reset()
    return exact
