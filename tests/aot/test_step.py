"""The whole step of a Llama-3-8B shape, and of models whose layers have other parts, compiles for the GPU, with the
cache in place."""

import logging
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgen.cache.window_manager import blocks_for
from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, ampere, hopper, made_for
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.verdict import ExpertShapes
from jaxgen.models.placement import abstract_packed_params
from jaxgen.runner.programs import step_program
from jaxgen.runner.separate_step import LAYERS as LAYERS_PROGRAM
from jaxgen.runner.separate_step import separate_programs
from jaxgen.weights.encodings.weight_formats import PRODUCTS, with_formats
from jaxgen.weights.families.parameters import parameters
from scripts.loads.large import LLAMA3_8B, OPT_6_7B
from tests.aot import cases
from tests.aot.calls import EXPERT_PRODUCTS, of_ends, of_layers
from tests.aot.models import LAYERS, model_of
from tests.aot.target import H200, STEP_DONATES, Executable, Target, compile_for, compile_program

logger = logging.getLogger(__name__)

CONFIG = EngineConfig(CacheConfig(64, 1024), SchedulerConfig(256, 64, 8192), 0, 4)
"""8 GiB of cache, 256 tokens a step."""
FEW_LAYERS = 3
"""Where a layer shows as much as all of them: one more costs seconds, and adds what the one before it did."""
MAX_TEMPORARIES = 256 * 2**20
MOST_LOGITS = 6
"""Arrays of float32 logits of all rows that sampling may hold at once; with large vocabularies they are most of it."""
WHOLE = "copy|copy-start|slice|dynamic-slice|fusion|fusion-done"
"""Instructions that make a copy of an operand."""
COUNTS = "= s32["
"""How counts of tokens begin, of which rows may have as many as a weight has numbers."""
PRODUCT = "%gemm_fusion"
"""How names of products begin, whose results may have as many numbers as a weight."""
HOPPER, AMPERE = hopper(132), ampere(108)
WITHOUT_WAITING = {"kWhile", "kCustomKernel", "kCopy"}
"""What the host starts beside CUDA graphs; of a loop whose number of turns is known it reads nothing."""


def compile_step(
    target: Target,
    kernels: Kernels,
    donate: tuple[int, ...],
    num_layers: int | None = None,
    model: DecoderConfig = LLAMA3_8B,
    config: EngineConfig = CONFIG,
) -> tuple[Executable, tuple[Any, ...], int]:
    """The step, without sampling if that is separate, its arrays of K, V and states, and the bytes of cache and rows.

    ``num_layers`` None: all of them.
    """
    model = model.of_layers(num_layers or model.num_layers)
    step = step_program(model, config, kernels, config.scheduler.token_budget)
    if kernels.separate_sampling:
        step = separate_programs(model, config, kernels, config.scheduler.token_budget)[LAYERS_PROGRAM]
    _, cache, rows, *_ = step.shapes
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves((cache, rows))]
    options = dict(kernels.compiler_options)
    compiled = compile_for(target, step.function, step.shapes, donate, read=False, options=options)
    return compiled, (*cache.arrays, *cache.states), sum(sizes)


def apart(model: DecoderConfig) -> EngineConfig:
    """A configuration with blocks for each kind of cache that the model can have."""
    windows = tuple(kind.window or 0 for kind in model.cache_kinds[1:])
    blocks = tuple(
        blocks_for(CONFIG.scheduler.max_num_seqs, window, CONFIG.cache.block_size, CONFIG.scheduler)
        for window in windows
    )
    return replace(CONFIG, cache=replace(CONFIG.cache, windows=windows, window_blocks=blocks))


def taken(model: DecoderConfig) -> Kernels:
    """The kernels that an H200 takes if its start finds them right."""
    device = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
    return made_for(device, model, CONFIG.cache.block_size)


def check(
    target: Target, kernels: Kernels, model: DecoderConfig = LLAMA3_8B, config: EngineConfig = CONFIG
) -> Executable:
    compiled, arrays, donated = compile_step(target, kernels, STEP_DONATES, model=model, config=config)
    assert compiled.aliased == donated
    assert not [line for array in arrays for line in compiled.copies(array)]
    logits = 4 * CONFIG.scheduler.max_num_seqs * model.vocab_size
    assert compiled.temporaries < max(MAX_TEMPORARIES, MOST_LOGITS * logits)
    assert compiled.num_mosaic == (of_layers(model, kernels) if kernels.own else 0) + of_ends(model, kernels)
    assert not compiled.fused_mosaic
    return compiled


@pytest.mark.only(cases.AMPERE)  # XLA's passes are the same for all
def test_cache_and_rows_are_updated_in_place(target: Target) -> None:
    check(target, REFERENCE_GPU, model=LLAMA3_8B.of_layers(FEW_LAYERS))


def test_with_pallas_kernels(target: Target) -> None:
    """For Hopper with all layers."""
    right, wrong = (HOPPER, AMPERE) if target is H200 else (AMPERE, HOPPER)
    model = LLAMA3_8B if target is H200 else LLAMA3_8B.of_layers(FEW_LAYERS)
    started = check(target, right, model=model).started
    assert started == ["kCommandBuffer"]
    with pytest.raises(ValueError, match=r"Hopper|exceeds available shared memory"):
        compile_step(target, wrong, STEP_DONATES, FEW_LAYERS)


@pytest.mark.only(cases.HOPPER)  # test_kernels has its shapes for the others
def test_opt_with_pallas_kernels(target: Target) -> None:
    """Every query head has a kv head of its own."""
    model = OPT_6_7B.of_layers(FEW_LAYERS)
    check(target, HOPPER, model=model)


@pytest.mark.only(cases.HOPPER)  # others have no kernel for codes
def test_a_cache_of_codes_is_updated_in_place(target: Target) -> None:
    model = replace(LLAMA3_8B.of_layers(FEW_LAYERS), kv_dtype="int8")
    check(target, taken(model), model=model)


@pytest.mark.only(cases.HOPPER)  # others have no kernel for heads of 256
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_other_parts(target: Target, name: str) -> None:
    """Norms of keys; windows in some layers, with blocks of their own, heads of 256 and two rotary embeddings; sinks;
    experts, whose weights are read where they lie; convolutions, which XLA computes; and gated delta nets."""
    model = model_of(name)
    kernels = taken(model)
    compiled = check(target, kernels, model=model, config=apart(model))
    logger.info(
        "%s of %d layers: %d operations, the host starts %s, %d MiB of temporaries",
        *(name, model.num_layers, compiled.num_operations, Counter(compiled.started), compiled.temporaries // 2**20),
    )
    placed = jax.tree.leaves(abstract_packed_params(model, kernels))
    matrices = [weight for weight in placed if weight.size > model.hidden_size * model.num_kv_heads * model.head_dim]
    assert len(matrices) >= 4
    copies = [line for weight in matrices for line in compiled.copies(weight, WHOLE) if PRODUCT not in line]
    copied_weights = [line for line in copies if COUNTS not in line]
    assert not copied_weights
    started = compiled.started
    assert started[0] == "kCommandBuffer", "a CUDA graph up to the greedy choice"
    assert "kWhile" not in started, "a loop over tokens"
    looped, copied = _looped_experts(compiled, model)
    assert not looped
    assert not copied


EXPERTS = "layers.mlp.experts.{}.weight"


@pytest.mark.only(cases.HOPPER)
def test_codes_of_experts_are_read_where_they_lie(target: Target) -> None:
    """MXFP4 in one product, FP8 in the other; tests/aot/cases.py has the kernels for other formats."""
    of_gates, of_values = WeightFormat(4, 32, floats=True), WeightFormat(8, None, floats=True)
    formats = {EXPERTS.format("gate_up"): of_gates, EXPERTS.format("down"): of_values}
    model = replace(with_formats(model_of("gpt-oss-20b").of_layers(1), formats), vocab_size=1024)
    compiled = check(target, taken(model), model=model)
    assert compiled.started == ["kCommandBuffer"]
    looped, copied = _looped_experts(compiled, model)
    assert not looped
    assert not copied


@pytest.mark.only(cases.AMPERE)  # XLA's passes are the same for all
def test_xlas_loop_over_experts_is_seen(target: Target) -> None:
    """So the checks of the test above can fail."""
    model = model_of("Qwen3-30B-A3B-Thinking-2507").of_layers(1)
    compiled, *_ = compile_step(target, REFERENCE_GPU, STEP_DONATES, model=model)
    looped, copied = _looped_experts(compiled, model)
    assert len(looped) == EXPERT_PRODUCTS
    assert copied


_OF_WEIGHTS = re.compile(r"= \(?(?:bf16|f8e4m3fn|s8|s4|u4)\[")


def _looped_experts(compiled: Executable, model: DecoderConfig) -> tuple[list[str], list[str]]:
    """Loops that read a layer's experts, and instructions, also of loops, that copy one expert's matrix."""
    shapes = ExpertShapes.of(model)
    if shapes is None:
        return [], []
    products = [(out, width) for width, out in shapes.products]
    stacks = (jax.ShapeDtypeStruct((shapes.experts, *product), model.dtype) for product in products)
    alone = (jax.ShapeDtypeStruct(product, model.dtype) for product in products)
    # Rows of 256 tokens may be as many numbers, but are float32.
    copies = [line for matrix in alone for line in compiled.copies(matrix, WHOLE) if _OF_WEIGHTS.search(line)]
    return [line for stack in stacks for line in compiled.loops_with(stack)], copies


@pytest.mark.only(cases.HOPPER)
@pytest.mark.parametrize("rows", [64, 256])
def test_the_host_waits_for_no_program(target: Target, rows: int) -> None:
    """A program is one CUDA graph, or graphs and loops of a known number of turns. None has a branch."""
    config = replace(CONFIG, scheduler=replace(CONFIG.scheduler, max_num_seqs=rows))
    model = replace(LLAMA3_8B.of_layers(1), vocab_size=16_384)
    for name, one in separate_programs(model, config, HOPPER, CONFIG.scheduler.token_budget).items():
        compiled = compile_program(target, one, HOPPER)
        logger.info("%s, %d rows: the host starts %s", name, rows, Counter(compiled.started))
        assert set(compiled.started) <= {"kCommandBuffer", *WITHOUT_WAITING}
        assert "kConditional" not in compiled.thunks
        loops = re.findall(r"^.* while\(.*$", compiled.hlo, flags=re.MULTILINE)
        assert all('"known_trip_count"' in loop for loop in loops)
        assert name != LAYERS_PROGRAM or compiled.started == ["kCommandBuffer"]


@pytest.mark.only(cases.AMPERE)  # XLA's passes are the same for all
def test_weights_are_read_where_they_lie(target: Target) -> None:
    """In a scan over their stack each would be copied first: three times the traffic of a step."""
    down = jax.ShapeDtypeStruct((LLAMA3_8B.hidden_size, LLAMA3_8B.intermediate_size), jnp.bfloat16)
    assert not compile_step(target, REFERENCE_GPU, STEP_DONATES, FEW_LAYERS)[0].copies(down, WHOLE)
    assert compile_step(target, REFERENCE, STEP_DONATES, FEW_LAYERS)[0].copies(down, WHOLE)


@pytest.mark.only(cases.HOPPER)
def test_codes_are_read_where_they_lie(target: Target) -> None:
    """By the kernels, in one graph; tests/aot/cases.py has other formats."""
    matrices = [one.path for one in parameters(LLAMA3_8B) if one.path in PRODUCTS]
    model = with_formats(LLAMA3_8B, dict.fromkeys(matrices, WeightFormat(4, 32)))
    compiled = check(target, HOPPER, model=model.of_layers(FEW_LAYERS))
    placed = jax.tree.leaves(abstract_packed_params(model.of_layers(FEW_LAYERS), HOPPER))
    assert compiled.started == ["kCommandBuffer"]
    assert not [line for codes in placed if codes.dtype == jnp.int4 for line in compiled.copies(codes, WHOLE)]


@pytest.mark.only(cases.AMPERE)  # XLA's passes are the same for all
def test_xlas_attention_is_one_loop(target: Target) -> None:
    """At whose every turn the host waits: not one in another, as a CPU has it."""
    model = replace(LLAMA3_8B, num_layers=1, vocab_size=1024)
    step = step_program(model, CONFIG, REFERENCE_GPU, CONFIG.scheduler.token_budget)
    hlo = compile_for(target, step.function, step.shapes, STEP_DONATES, read=False).hlo
    loops = re.findall(r"^.* while\(.*$", hlo, flags=re.MULTILINE)
    assert len([loop for loop in loops if f",{model.num_kv_heads},16,{model.head_dim}]" in loop]) == 1


@pytest.mark.only(cases.AMPERE)  # XLA's passes are the same for all
def test_a_cache_that_is_not_donated_is_copied(target: Target) -> None:
    """So the check of the test above can fail."""
    compiled, (array,), _ = compile_step(target, REFERENCE_GPU, (), FEW_LAYERS)
    assert compiled.aliased == 0
    assert compiled.copies(array)
