"""Every Pallas kernel, at the sizes of real models, as it is compiled for GPUs: one line each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.gated_delta import DeltaState
from pallas_kernels.gpu.attention.items import MOST_VALUES
from pallas_kernels.gpu.copy_blocks import gather_blocks, scatter_blocks
from pallas_kernels.gpu.dense_product import dense_product, gated_product
from pallas_kernels.gpu.expert_product import expert_product
from pallas_kernels.gpu.gated_delta import gated_delta
from pallas_kernels.gpu.norms import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from pallas_kernels.gpu.partial_recompute import partial_recompute
from pallas_kernels.gpu.rotate_write import rotate_write
from pallas_kernels.gpu.shared_memory import BLACKWELL_RTX
from pallas_kernels.gpu.write_kv import write_kv
from pallas_kernels.kv_codes import SCALE_BYTES
from tests.aot.attention_programs import SHAPES, program

AMPERE, HOPPER, BLACKWELL = 8, 9, (10, 12)
BULK = (HOPPER, *BLACKWELL)
"""Capabilities that copy in bulk."""
LARGE = (9, 10)
"""Those with more than 100 KiB of shared memory for a thread block."""


@dataclass(frozen=True)
class Case:
    """``function`` of ``args``; the first of them is the cache, and donated if the kernel updates it ``in_place``."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    in_place: bool = True
    needs: tuple[int, ...] | None = (9,)
    """The major numbers of the compute capabilities for which this is; None: any."""
    most_spilled: int = 0
    """Bytes of a thread's registers that are stored to memory and as many loaded, if that is outside of the inner
    loops."""

    @property
    def cache(self) -> Any:
        return self.args[0]

    def __str__(self) -> str:
        return self.name


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def index(*shape: int) -> jax.ShapeDtypeStruct:
    return array(*shape, dtype=jnp.int32)


LLAMA3_8B = array(64, 32, 2, 8, 64, 128)
"""Its cache."""
OPT_6_7B = array(16, 32, 2, 32, 64, 128)
SMALL_HEADS = array(64, 12, 2, 4, 16, 64, dtype=jnp.float16)
"""Of dimension 64, in blocks of 16 tokens."""
ODD_BLOCKS = array(16, 53, 2, 1, 16, 80)
"""Their pieces are 106 rows of 160 bytes, no multiple of 128."""


def kv(cache: Any, tokens: int) -> Any:
    return array(tokens, cache.shape[3], cache.shape[5], dtype=cache.dtype)


def write(cache: Any, tokens: int) -> tuple[Any, ...]:
    return cache, index(), kv(cache, tokens), kv(cache, tokens), index(tokens)


def write_layers(cache: Any, k: Any, v: Any, slots: Any) -> Any:
    """As a step writes: a scan over the layers, whose carry the cache is."""
    layers = jnp.arange(cache.shape[1])
    return jax.lax.scan(lambda carry, layer: (write_kv(carry, layer, k, v, slots), None), cache, layers)[0]


def rotated(cache: Any, heads: int, pairs: int, tokens: int = 256, *, norm: Any = None, gated: bool = False) -> Case:
    """Return a case of rotate_write in the shapes of a model."""
    _, _, _, K, _, D = cache.shape
    first_key, angle = heads * (1 + gated), array(tokens, 1, pairs, dtype=jnp.float32)
    weights = None if norm is None else (array(D, dtype=norm),) * 2
    projected = array(tokens, (first_key + 2 * K) * D, dtype=cache.dtype)

    def call(cache: Any, projected: Any, *about: Any) -> Any:
        return rotate_write(projected, cache, *about, heads=heads, first_key=first_key, eps=1e-5)

    args = cache, projected, index(), index(tokens), index(), (angle, angle) if pairs else None, weights
    return Case(f"rotate_write_{D}_of_{heads}_and_{K}", call, args)


def coded(case: Case, dtype: Any, most_spilled: int = 0) -> Case:
    """Return a case whose first argument, the cache, has codes with scales apart."""
    *shape, width = case.cache.shape
    cache = array(*shape, width + SCALE_BYTES, dtype=dtype)
    name = f"{case.name}_{jnp.dtype(dtype).name}"
    return replace(case, name=name, args=(cache, *case.args[1:]), most_spilled=most_spilled, needs=(HOPPER,))


def recompute(
    cache: Any, tokens: int, hidden: int, heads: int, *, bias: bool = False, angles: bool = True
) -> tuple[Any, ...]:
    outputs = (heads + 2 * cache.shape[3]) * cache.shape[5]
    layers, half = cache.shape[1], array(tokens, 1, cache.shape[5] // 2, dtype=jnp.float32)
    return (
        *(cache, index(), array(tokens, hidden, dtype=cache.dtype), array(layers, outputs, hidden, dtype=cache.dtype)),
        *(array(layers, outputs, dtype=cache.dtype) if bias else None, (half, half) if angles else None, index(tokens)),
    )


def experts(weights: Any, x: Any, layer: Any, starts: Any) -> Any:
    """In the order of a Case: the weights are what must not be copied."""
    return expert_product(x, weights, layer, starts)


def expert_args(
    tokens: int, per_token: int, experts: int, inputs: int, outputs: int, dtype: Any = jnp.bfloat16
) -> tuple[Any, ...]:
    rows = array(tokens * per_token, inputs)
    return array(1, experts, outputs, inputs, dtype=dtype), rows, index(), index(experts + 1)


GROUP = 32


def grouped_experts(weights: Any, x: Any, layer: Any, starts: Any, scales: Any) -> Any:
    return expert_product(x, weights, layer, starts, scales, group=GROUP)


def grouped_args(tokens: int, per_token: int, experts: int, inputs: int, outputs: int, dtype: Any) -> tuple[Any, ...]:
    codes = expert_args(tokens, per_token, experts, inputs, outputs, dtype)
    return *codes, array(1, experts, inputs // GROUP, outputs)


DENSE_LAYERS = 2


def dense(weight: Any, x: Any, layer: Any, num_tokens: Any, residual: Any = None) -> Any:
    """As ``experts``; of the dtype of the residual, or in float32 without one, as logits are."""
    dtype = jnp.float32 if residual is None else x.dtype
    return dense_product(x, weight, layer, num_tokens, residual, out_features=weight.shape[1], dtype=dtype)


def gated(weight: Any, x: Any, layer: Any, num_tokens: Any, *, activation: str = "silu") -> Any:
    return gated_product(x, weight, layer, num_tokens, activation=activation, dtype=x.dtype)


def dense_args(tokens: int, inputs: int, outputs: int, *, residual: bool = False) -> tuple[Any, ...]:
    weight, x = array(DENSE_LAYERS, outputs, inputs), array(tokens, inputs)
    return weight, x, index(), index(), *((array(tokens, outputs),) if residual else ())


def coded_cases() -> tuple[Case, ...]:
    """Return products with codes in the shapes of Llama-3-8B."""

    def call(product: Callable[..., Any], group: int | None) -> Callable[..., Any]:
        def multiply(weight: Any, x: Any, layer: Any, num_tokens: Any, scales: Any, *residual: Any) -> Any:
            return product(x, weight, layer, num_tokens, *residual, scales=scales, group=group, dtype=x.dtype)

        return multiply

    gated = partial(gated_product, activation="silu")
    codes: dict[str, tuple[Any, int | None]] = {"int8": (jnp.int8, None), "fp8": (jnp.float8_e4m3fn, None)}
    codes |= {"int4": (jnp.int4, 32), "mxfp4": (jnp.uint4, 32)}
    products: dict[str, tuple[Callable[..., Any], tuple[int, int], tuple[str, ...]]] = {
        "qkv": (dense_product, (4096, 6144), ("mxfp4",)),
        "out": (dense_product, (4096, 4096), ("fp8",)),
        "gate_up": (gated, (4096, 28672), ("int8", "int4")),
    }
    return tuple(
        Case(
            f"dense_product_{name}_{kind}",
            call(product, codes[kind][1]),
            (
                array(DENSE_LAYERS, outputs, inputs, dtype=codes[kind][0]),
                *(array(256, inputs), index(), index()),
                array(DENSE_LAYERS, inputs // (codes[kind][1] or inputs), outputs),
                *((array(256, outputs),) if name == "out" else ()),
            ),
            in_place=False,
        )
        for name, (product, (inputs, outputs), kinds) in products.items()
        for kind in kinds
    )


def delta_net(starts: Any, keys: Any, changes: Any, decays: Any, x: Any, gates: Any, *chunks: Any) -> Any:
    """As ``experts``."""
    net: Callable[..., Any] = gated_delta
    return net(x, *gates, DeltaState(starts, keys, changes, decays), *chunks)


def delta_args(tokens: int, key_heads: int, heads: int) -> tuple[Any, ...]:
    """Heads of 128, 64 rows and one layer."""
    rows, numbers = 65, {"dtype": jnp.float32}
    state = [(heads, 128, 128), (key_heads, 128, 32), (heads, 32, 128), (heads, 32)]
    gates = [array(*shape, **numbers) for shape in ((tokens, heads), (tokens, heads), (heads,), (heads,))]
    inputs = array(tokens, (2 * key_heads + heads) * 128), gates
    return (
        *(array(rows, 1, *shape, **numbers) for shape in state),
        *inputs,
        index(),
        index(65),
        index(64),
        index(64),
        index(),
    )


NORM = {"eps": 1e-5}


def dense_cases() -> tuple[Case, ...]:
    """Return the products and norms of Llama-3-8B and Qwen3-8B, and some at the edges of what the kernels take."""
    products: dict[str, tuple[Callable[..., Any], Any]] = {
        "qkv": (dense, dense_args(256, 4096, 6144)),
        "out": (dense, dense_args(256, 4096, 4096, residual=True)),
        "gate_up": (gated, dense_args(256, 4096, 28672)),
        "down": (dense, dense_args(256, 14336, 4096, residual=True)),
        "head": (dense, dense_args(256, 4096, 128256)),
        "qwen3_gate_up": (gated, dense_args(256, 4096, 24576)),
        "qwen3_down": (dense, dense_args(256, 12288, 4096, residual=True)),
        "qwen3_head": (dense, dense_args(256, 4096, 151936)),
        "wide": (dense, dense_args(2048, 4096, 8192, residual=True)),
        "odd_rows": (dense, dense_args(225, 448, 320, residual=True)),
        "gelu_tanh": (partial(gated, activation="gelu_tanh"), dense_args(64, 3840, 30720)),
        "swiglu_clipped": (partial(gated, activation="swiglu_clipped"), dense_args(64, 2880, 5760)),
    }
    rows, heads, weight = array(256, 4096), array(8192, 128, dtype=jnp.float32), array(4096)
    parts = array(2, 256, 4096, dtype=jnp.float32)
    norms: dict[str, tuple[Callable[..., Any], Any]] = {
        "rms_norm": (rms_norm, (rows, weight, index())),
        "rms_norm_of_heads": (rms_norm, (heads, array(128, dtype=jnp.float32), index())),
        "layer_norm": (layer_norm, (rows, weight, weight, index())),
        "layer_norm_of_heads": (layer_norm, (heads, None, None, index())),
        "add_rms_norm": (add_rms_norm, (rows, parts, weight, index())),
        "add_layer_norm": (add_layer_norm, (rows, parts, weight, weight, index())),
        "add_layer_norm_12288": (
            add_layer_norm,
            (array(64, 12288), array(1, 64, 12288, dtype=jnp.float32), array(12288), array(12288), index()),
        ),
    }
    return (
        *(Case(f"dense_product_{name}", kernel, args, in_place=False) for name, (kernel, args) in products.items()),
        *(Case(name, partial(norm, **NORM), args, in_place=False, needs=None) for name, (norm, args) in norms.items()),
    )


SPILLED = {"gemma_2_9b": 152}
"""By heads of 256: numbers of an item or a piece, stored before its tiles are walked and loaded after it."""
CODES_SPILLED = {"blocks_of_128": 96, "gemma_2_9b": 484}
"""With codes, by tiles of which four warpgroups share the registers."""
FEW_SPILLED, AMPERE_SPILLED, BLACKWELL_SPILLED = 24, 64, 224
"""By heads of 128: the same on Hopper and on GPUs without wgmma."""
CASES = (
    Case("write_kv", write_kv, write(LLAMA3_8B, 256), needs=BULK),
    Case("write_kv_heads_64", write_kv, write(SMALL_HEADS, 37), needs=BULK),
    Case("write_kv_heads_80", write_kv, write(array(64, 12, 2, 2, 64, 80), 37), needs=BULK),
    Case("write_kv_heads_96", write_kv, write(array(64, 12, 2, 3, 64, 96), 37), needs=BULK),
    Case("write_kv_64_heads", write_kv, write(array(16, 12, 2, 64, 64, 128), 256), needs=LARGE),
    Case("write_kv_32_heads_rtx", partial(write_kv, shared_memory=BLACKWELL_RTX), write(OPT_6_7B, 256), needs=(12,)),
    Case("write_kv_in_scan", write_layers, (LLAMA3_8B, kv(LLAMA3_8B, 256), kv(LLAMA3_8B, 256), index(256))),
    rotated(LLAMA3_8B, 32, 64),
    rotated(array(64, 32, 2, 4, 64, 128), 32, 64, norm=jnp.bfloat16),
    rotated(array(64, 12, 2, 8, 64, 256), 16, 128, norm=jnp.float32),
    rotated(array(64, 12, 2, 2, 64, 256), 16, 32, 225, norm=jnp.float32, gated=True),
    rotated(SMALL_HEADS, 12, 8, 37),
    rotated(OPT_6_7B, 32, 0),
    Case("gather_blocks", gather_blocks, (LLAMA3_8B, index(16), index()), in_place=False, needs=LARGE),
    Case("gather_blocks_heads_64", gather_blocks, (SMALL_HEADS, index(16), index()), in_place=False),
    Case("gather_blocks_53_layers", gather_blocks, (ODD_BLOCKS, index(16), index()), in_place=False, needs=LARGE),
    *(
        coded(rotated(array(64, 32, 2, 8, 64, D), 32, D // 2, norm=norm), dtype)
        for D, norm, dtype in ((128, None, jnp.int8), (128, jnp.bfloat16, jnp.uint8), (256, jnp.float32, jnp.int8))
    ),
    coded(rotated(array(64, 12, 2, 4, 64, 64), 12, 8, 37), jnp.uint8),
    Case("write_kv_any_gpu", partial(write_kv, bulk=False), write(LLAMA3_8B, 256), needs=None),
    Case("write_kv_heads_64_any_gpu", partial(write_kv, bulk=False), write(SMALL_HEADS, 37), needs=None),
    Case(
        "gather_blocks_any_gpu",
        partial(gather_blocks, bulk=False),
        (LLAMA3_8B, index(16), index()),
        in_place=False,
        needs=None,
    ),
    Case(
        "scatter_blocks_any_gpu",
        partial(scatter_blocks, bulk=False),
        (SMALL_HEADS, index(16), array(16, *SMALL_HEADS.shape[1:], dtype=SMALL_HEADS.dtype), index()),
        needs=None,
    ),
    Case(
        "scatter_blocks", scatter_blocks, (LLAMA3_8B, index(16), array(16, *LLAMA3_8B.shape[1:]), index()), needs=LARGE
    ),
    Case("partial_recompute", partial_recompute, recompute(LLAMA3_8B, 2048, 4096, 32)),
    Case("partial_recompute_blocks", partial(partial_recompute, run=64), recompute(LLAMA3_8B, 1024, 4096, 32)),
    Case("partial_recompute_opt", partial_recompute, recompute(OPT_6_7B, 1000, 4096, 32, bias=True, angles=False)),
    Case("partial_recompute_heads_64", partial_recompute, recompute(SMALL_HEADS, 100, 768, 12, bias=True)),
    Case("expert_product_qwen3_30b_a3b", experts, expert_args(256, 8, 128, 2048, 1536), in_place=False),
    Case("expert_product_odd_rows", experts, expert_args(225, 4, 12, 448, 320), in_place=False),
    Case("expert_product_many_rows", experts, expert_args(2048, 8, 128, 2048, 1536), in_place=False),
    Case("expert_product_gpt_oss_20b", experts, expert_args(64, 4, 32, 2880, 5760), in_place=False),
    Case("expert_product_fp8", experts, expert_args(2048, 8, 128, 2048, 1536, jnp.float8_e4m3fn), in_place=False),
    Case("expert_product_int4", grouped_experts, grouped_args(2048, 8, 128, 2048, 1536, jnp.int4), in_place=False),
    Case("expert_product_int8", grouped_experts, grouped_args(2048, 8, 128, 2048, 1536, jnp.int8), in_place=False),
    Case("expert_product_mxfp4", grouped_experts, grouped_args(64, 4, 32, 2880, 2880, jnp.uint4), in_place=False),
    *dense_cases(),
    *coded_cases(),
    *(
        Case(f"gated_delta_{name}", delta_net, delta_args(256, key_heads, heads))
        for name, key_heads, heads in (("qwen3_5_0_8b", 16, 16), ("qwen3_next", 16, 32))
    ),
    *(
        Case(f"attention_{name}", *program(shape), in_place=False, most_spilled=SPILLED.get(name, FEW_SPILLED))
        for name, shape in SHAPES.items()
    ),
    *(
        Case(
            f"attention_{name}_ampere",
            *program(shape, bulk=False, wgmma=False),
            in_place=False,
            needs=(AMPERE,),
            most_spilled=AMPERE_SPILLED,
        )
        for name, shape in SHAPES.items()
        if shape.D <= MOST_VALUES
    ),
    *(
        coded(Case(f"attention_{name}", *program(SHAPES[name]), in_place=False), dtype, CODES_SPILLED.get(name, 0))
        for name in ("llama_3_8b", "gpt_oss_20b", "blocks_of_128", "gemma_2_9b")
        for dtype in (jnp.int8, jnp.uint8)
    ),
    coded(Case("gather_blocks", gather_blocks, (LLAMA3_8B, index(16), index()), in_place=False), jnp.int8),
    Case(
        "attention_llama_3_8b_blackwell",
        *program(SHAPES["llama_3_8b"], wgmma=False),
        in_place=False,
        needs=BLACKWELL,
        most_spilled=BLACKWELL_SPILLED,
    ),
)
