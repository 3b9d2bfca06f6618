"""Products of a layer with weights of few bits: XLA reads the codes inside one kernel each, and writes no matrix."""

import logging
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgen.core.quantization import WeightFormat
from jaxgen.kernels.choice import REFERENCE_GPU, hopper
from jaxgen.models.linear import product
from jaxgen.models.quantized_weight import Codes, QuantizedWeight
from jaxgen.weights.encodings.weight_formats import largest_matrix_bytes, with_formats
from scripts.gpu.roofline.bill import PRODUCTS, bill_of
from scripts.gpu.roofline.pallas import Load
from scripts.loads.large import LLAMA3_8B
from tests.aot import cases
from tests.aot.target import Executable, Target, compile_for

logger = logging.getLogger(__name__)

TOKENS = 64
SHAPES = QKV, OUT, GATE_UP, DOWN = (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)
MOST_BYTES, MOST_WITH_ZEROS = 1.16, 1.7
"""That a layer's products read and write, by those of its weights; zero points are a product of their own."""
HOPPER, HOPPER_KERNELS = pytest.mark.only(cases.HOPPER), hopper(132)
EACH = {
    "int8": WeightFormat(8, None),
    "int8 in groups": WeightFormat(8, 128),
    "int4": WeightFormat(4, 32),
    "int4, scales in float32": WeightFormat(4, 128, "float32"),
    "int4 with zeros": WeightFormat(4, 128, "float32", zeros=True),
}
FP8 = {"fp8": WeightFormat(8, None, floats=True), "fp8 in groups": WeightFormat(8, 128, "float32", floats=True)}
FP4 = {"fp4": WeightFormat(4, 16, "float32", floats=True), "mxfp4": WeightFormat(4, 32, floats=True)}


def layer_of(target: Target, about: WeightFormat) -> Executable:
    """The products of a layer, with a SwiGLU as they have."""

    def weight(shape: tuple[int, int]) -> Any:
        kernel = REFERENCE_GPU.floats if about.floats else REFERENCE_GPU.quantized
        assert kernel is not None

        def pack(codes: Codes) -> QuantizedWeight:
            return QuantizedWeight.pack(about, codes, kernel, "bfloat16")

        return jax.eval_shape(pack, Codes.abstract((1, *shape), about))

    def multiply(x: jax.Array, weight: Any) -> jax.Array:
        return product(x, weight, jnp.int32(TOKENS)).astype(x.dtype)

    def layer(x: jax.Array, weights: list[Any]) -> jax.Array:
        qkv, out, gate_up, down = weights
        x += multiply(multiply(x, qkv)[:, :4096], out)
        gate, up = jnp.split(multiply(x, gate_up), 2, axis=1)
        return x + multiply(jax.nn.silu(gate) * up, down)

    x = jax.ShapeDtypeStruct((TOKENS, 4096), jnp.bfloat16)
    # Sums that XLA splits among thread blocks are written as parts, whatever the format: they are left out here.
    options = dict(REFERENCE_GPU.compiler_options) | {"xla_gpu_experimental_force_split_k": "1"}
    return compile_for(target, layer, (x, [weight(shape) for shape in SHAPES]), read=False, options=options)


@pytest.mark.parametrize("name", [*EACH, *(pytest.param(name, marks=HOPPER) for name in FP8)])
def test_codes_are_read_inside_their_product(target: Target, name: str) -> None:
    about = (EACH | FP8)[name]
    compiled = layer_of(target, about)
    stored = sum(about.num_bytes(shape) for shape in SHAPES)
    logger.info(
        "%s: %.3f times the bytes of the weights, %.1f MiB of temporaries, %d kernels",
        *(name, compiled.moved / stored, compiled.temporaries / 2**20, compiled.num_operations),
    )
    for size in SHAPES:
        assert not compiled.copies(jax.ShapeDtypeStruct(size, jnp.int8), "copy|fusion|slice|dynamic-slice")
    assert compiled.temporaries < about.num_bytes(DOWN)
    assert compiled.moved < (MOST_WITH_ZEROS if about.zeros else MOST_BYTES) * stored


def of_fp8_inputs(target: Target, multiply: Any, rows: int, stack: tuple[int, ...], *more: Any) -> Executable:
    """A product whose inputs are rounded to FP8, with a weight of FP8."""
    assert HOPPER_KERNELS.floats is not None
    kernel = HOPPER_KERNELS.floats.of_weight(FP8["fp8"], stack, "bfloat16", fp8_inputs=True)
    pack = partial(QuantizedWeight.pack, FP8["fp8"], kernel=kernel, dtype="bfloat16", fp8_inputs=True)
    weight = jax.eval_shape(pack, Codes.abstract(stack, FP8["fp8"]))
    x = jax.ShapeDtypeStruct((rows, stack[-1]), jnp.bfloat16)
    options = {"xla_gpu_experimental_force_split_k": "1"}
    return compile_for(target, multiply, (x, weight, *more), read=False, options=options)


@HOPPER
def test_inputs_of_fp8_make_a_product_of_fp8(target: Target) -> None:
    """Both operands of one kernel are e4m3. No token is added to another, or compared with it."""

    def multiply(x: jax.Array, weight: QuantizedWeight) -> jax.Array:
        return weight.product(x, jnp.int32(TOKENS), dtype=x.dtype)

    compiled = of_fp8_inputs(target, multiply, TOKENS, (1, *OUT))
    kernels = bill_of(compiled.hlo, Load((), 0))
    (multiplied,) = [one for one in kernels if one.kind == PRODUCTS]
    logger.info("FP8 times FP8: %s", [(one.name, one.bytes) for one in kernels])
    assert multiplied.dtype == "f8e4m3fn"
    assert multiplied.bytes == TOKENS * 4096 + OUT[0] * OUT[1] + 4 * TOKENS * OUT[0]
    reduced = re.findall(r"= \w+\[([\d,]*)\]\S* reduce\(", compiled.hlo)
    assert reduced
    assert all(shape.split(",")[0] == str(TOKENS) for shape in reduced)


@HOPPER
def test_inputs_of_experts_are_rounded_to_fp8(target: Target) -> None:
    """XLA does not leave out the rounding, though the kernel's operand is bfloat16 again."""

    def multiply(x: jax.Array, weight: QuantizedWeight, starts: jax.Array) -> jax.Array:
        return weight.expert_product(x, starts)

    compiled = of_fp8_inputs(target, multiply, 8 * TOKENS, (1, 16, 1536, 2048), jax.ShapeDtypeStruct((17,), jnp.int32))
    assert compiled.num_mosaic == 1
    assert re.search(r"= f8e4m3fn\[512,2048\]\S* convert\(", compiled.hlo)


@pytest.mark.parametrize("name", [*FP4, *(pytest.param(name, marks=pytest.mark.only(cases.AMPERE)) for name in FP8)])
def test_where_a_matrix_is_written_the_plan_counts_it(target: Target, name: str) -> None:
    about = (FP4 | FP8)[name]
    model = with_formats(LLAMA3_8B, {"layers.mlp.gate_up.weight": about})
    major, minor = map(int, target.device.compute_capability.split("."))
    planned = largest_matrix_bytes(model, (major, minor))
    found = layer_of(target, about).temporaries
    logger.info("%s: %.1f MiB of temporaries, planned %.1f", name, found / 2**20, planned / 2**20)
    assert planned <= found < 1.1 * planned
