"""Measure the native CPU kernels and XLA's programs of their twins, with the shapes of an 88M-parameter Llama.

Both walk 12 layers in one program, so that weights and cache come from memory as they do in a step. They take turns.
The smallest time of each is printed, per layer, with its bytes and operations per second. These are also shown as a
share of this machine's best: a reduction over a large array, and XLA's largest square product.

    .venv/bin/python -m scripts.measure.kernel_time
    .venv/bin/python -m scripts.measure.kernel_time --kernels product --dtypes float32 --rounds 20
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.cpu.library import DTYPES, Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.packed_product import pack
from pallas_kernels.ragged_paged_attention import ragged_paged_attention_ref
from pallas_kernels.write_kv import write_kv_ref
from scripts.measure.rates import bytes_per_second, fastest, flops_per_second

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 12, 12, 4, 64, 64
PRODUCTS = {"qkv": (768, 1280), "out": (768, 768), "gate_up": (768, 4096), "down": (2048, 768), "logits": (768, 8192)}
"""Inputs and outputs."""
TOKENS = (1, 16, 64, 128, 256)
LOADS = {
    "15 decodes at 300": (15, 300, 0, 0),
    "15 decodes at 300, chunk of 49": (15, 300, 49, 49),
    "15 decodes at 2000": (15, 2000, 0, 0),
    "1 decode at 2000": (1, 2000, 0, 0),
    "chunk of 256": (0, 1, 256, 256),
    "chunk of 64 at 2000": (0, 1, 64, 2000),
    "chunk of 256 at 2000": (0, 1, 256, 2000),
}
"""Decodes, their context, tokens of a prompt chunk, its context."""

Program = Callable[..., Any]


def layers_of_attention(attention: Program, write_kv: Program) -> Program:
    """12 layers of writing keys and values and attending, the cache carried as in a step."""

    @partial(jax.jit, donate_argnums=0)
    def program(cache: jax.Array, q: jax.Array, kv: jax.Array, slots: jax.Array, *rows: jax.Array) -> Any:
        def body(carry: tuple[jax.Array, jax.Array], layer: jax.Array) -> Any:
            cache = write_kv(carry[0], layer, kv, kv, slots)
            return (cache, attention(carry[1], cache, layer, *rows, scale=HEAD_DIM**-0.5)), None

        return lax.scan(body, (cache, q), jnp.arange(LAYERS))[0]

    def keep(cache: list[jax.Array], *others: jax.Array) -> jax.Array:
        cache[0], out = program(cache[0], *others)
        return out

    return keep


def attention_inputs(decodes: int, context: int, chunk: int, chunk_context: int, dtype: str) -> tuple[Any, ...]:
    rows = [(1, context)] * decodes + [(chunk, chunk_context)] * (chunk > 0)
    per_row = [-(-n // BLOCK_SIZE) for _, n in rows]
    tables = np.zeros((16, max(per_row)), np.int32)
    slots: list[int] = []
    for row, (length, n) in enumerate(rows):
        tables[row, : per_row[row]] = sum(per_row[:row]) + np.arange(per_row[row])
        positions = np.arange(n - length, n)
        slots += (tables[row, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE).tolist()
    T = max(16, len(slots))
    starts = np.full(17, len(slots), np.int32)
    starts[: len(rows) + 1] = np.cumsum([0] + [length for length, _ in rows])
    lens = np.array([n for _, n in rows] + [0] * (16 - len(rows)), np.int32)
    shape = (sum(per_row), LAYERS, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    slots += [shape[0] * BLOCK_SIZE] * (T - len(slots))
    draw = [jax.random.normal(jax.random.key(0), shape, dtype) for shape in (shape, (T, HEADS, HEAD_DIM))]
    rest = [jnp.asarray(x, jnp.int32) for x in (slots, tables, starts, lens, len(rows), decodes)]
    return [draw[0]], draw[1], draw[1][:, :KV_HEADS], *rest


def measure_attention(library: Library, dtype: str, rounds: int) -> Any:
    programs = {
        "native": layers_of_attention(library.ragged_paged_attention, library.write_kv),
        "xla": layers_of_attention(ragged_paged_attention_ref, write_kv_ref),
    }
    itemsize = jnp.dtype(dtype).itemsize
    for name, (decodes, context, chunk, chunk_context) in LOADS.items():
        load_ = (decodes, context, chunk, chunk_context, dtype)
        moved = (decodes * context + chunk_context) * 2 * KV_HEADS * HEAD_DIM * itemsize
        pairs = decodes * context + chunk * chunk_context - chunk * (chunk - 1) // 2
        timed = {kind: partial(program, *attention_inputs(*load_)) for kind, program in programs.items()}
        yield name, moved, 4 * pairs * HEADS * HEAD_DIM, fastest(timed, rounds)


def product(x: jax.Array, weight: jax.Array) -> jax.Array:
    """As the models multiply with weights that are not packed."""
    return lax.dot_general(
        x, weight, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def measure_products(library: Library, dtype: str, rounds: int) -> Any:
    @jax.jit
    def unpacked(x: jax.Array, weights: jax.Array) -> jax.Array:
        return lax.scan(lambda x, weight: (x, product(x, weight).max()), x, weights)[1]

    for name, (inputs, outputs) in PRODUCTS.items():
        weights = jax.random.normal(jax.random.key(0), (LAYERS, outputs, inputs), dtype)
        packed = pack(weights)

        @jax.jit
        def native(x: jax.Array, packed: jax.Array, outputs: int = outputs) -> jax.Array:
            def body(x: jax.Array, layer: jax.Array) -> tuple[jax.Array, jax.Array]:
                y = library.packed_product(x, packed, layer, jnp.int32(x.shape[0]), out_features=outputs)
                return x, y.max()

            return lax.scan(body, x, jnp.arange(LAYERS))[1]

        for tokens in TOKENS:
            x = jax.random.normal(jax.random.key(1), (tokens, inputs), dtype)
            programs = {"native": partial(native, x, packed), "xla": partial(unpacked, x, weights)}
            seconds = fastest(programs, rounds)
            yield f"{name}, {tokens} tokens", weights.nbytes // LAYERS, 2 * tokens * inputs * outputs, seconds


MEASURE = {"attention": measure_attention, "product": measure_products}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default=",".join(MEASURE))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    with TemporaryDirectory() as directory:
        library = load(Path(directory))
    bandwidth = bytes_per_second()
    for dtype in args.dtypes.split(","):
        rate = flops_per_second(dtype)
        print(f"# limits with {dtype}: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} GFLOP/s", flush=True)
        for kernel in args.kernels.split(","):
            for load_, moved, flops, seconds in MEASURE[kernel](library, dtype, args.rounds):
                native, xla = (seconds[name] / LAYERS for name in ("native", "xla"))
                row = {
                    "kernel": kernel,
                    "dtype": dtype,
                    "load": load_,
                    "native_us": round(1e6 * native, 1),
                    "xla_us": round(1e6 * xla, 1),
                    "speedup": round(xla / native, 2),
                    "gbps": round(moved / native / 1e9, 1),
                    "gflops": round(flops / native / 1e9),
                    "of_bandwidth": round(moved / native / bandwidth, 2),
                    "of_flops": round(flops / native / rate, 2),
                }
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
