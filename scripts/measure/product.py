"""Measure native CPU products: by format of the weight, or of a mixture of experts.

Programs take turns. Each walks some layers, whose weights come from memory as they do in a step.

    .venv/bin/python -m scripts.measure.product
    .venv/bin/python -m scripts.measure.product --formats bf16,int4/32 --tokens 1,16 --rounds 21
    .venv/bin/python -m scripts.measure.product --experts bfloat16,float32 --tokens 1,64

By format: the matrices of a 1B Llama. A line has the median and the smallest time of one product, and for the smallest
the bytes of weights and the operations a second. Shares compare it with reading as many bytes by all processors, and
its tokens/s with those of bfloat16. They are medians of the shares of each turn.

Experts: a block of 32 experts, native and XLA's, in these dtypes. The smallest time per layer is compared with the
least time of its work. That is reading the weights of the chosen experts once, or the FLOPs of the tokens' experts at
the best rate of a large product, whichever takes longer.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxgen.core.moe_config import MoEConfig
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.large_pages import use_large_pages
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.batch import BlockTokens
from jaxgen.models.layer_pattern import alike
from jaxgen.models.layer_stack import fold_layers
from jaxgen.models.linear import Matrix
from jaxgen.models.moe import MoE, route
from jaxgen.models.placement import place_matrix
from jaxgen.models.positions import Positional
from jaxgen.models.walk import LayerContext
from jaxgen.weights.gguf.codes import LAYOUTS
from pallas_kernels.cpu.library import Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.packed_product import pack
from pallas_kernels.quantized_product import GroupedCodes, pack_codes, pack_groups
from scripts.measure.rates import Reader, Timed, bytes_per_second, fastest, flops_per_second, turns

MATRICES = {"qkv": (2048, 3072), "out": (2048, 2048), "gate_up": (2048, 16384), "down": (8192, 2048)}
"""Inputs and outputs."""
FORMATS: dict[str, WeightFormat | None] = {
    "bf16": None,
    "int8": WeightFormat(8, None),
    "int8/128": WeightFormat(8, 128),
    **{f"int4/{group}": WeightFormat(4, group) for group in (32, 64, 128)},
    **{name: layout.form for name, layout in LAYOUTS.items()},
}
"""None: it is not of codes. Those of GGUF files have their types' names."""
STACK_BYTES = 2**28
"""Of a stack in bfloat16: more than a processor's own caches hold."""
LAYERS, WIDTH = 4, 1024
EXPERTS = MoEConfig(experts=32, per_token=4, inner=512)

Row = dict[str, Any]
Params = dict[tuple[Any, ...], Any]


class Stack:
    """Layers of one matrix in one format, and the program that multiplies with each of them."""

    def __init__(self, library: Library, name: str, inputs: int, outputs: int) -> None:
        self.layers = max(1, STACK_BYTES // (2 * inputs * outputs))
        form = FORMATS[name]
        self._weight = _weight(form, (self.layers, outputs, inputs))
        parts = jax.tree.leaves(self._weight)
        for part in parts:  # as the engine's
            use_large_pages(part.unsafe_buffer_pointer(), part.nbytes)
        self.nbytes = sum(part.nbytes for part in parts) // self.layers

        def multiply(x: jax.Array, layer: jax.Array, weight: Any) -> jax.Array:
            rows = jnp.int32(len(x))
            if form is None:
                return library.packed_product(x, weight, layer, rows, out_features=outputs)
            group = form.group or inputs
            return library.quantized_product(x, weight, layer, rows, bits=form.bits, group=group, out_features=outputs)

        def walk(x: jax.Array, weight: Any) -> jax.Array:
            return lax.scan(lambda x, layer: (x, multiply(x, layer, weight)[0, 0]), x, jnp.arange(self.layers))[1]

        self._program = jax.jit(walk)

    def timed(self, x: jax.Array) -> Timed:
        return lambda: self._program(x, self._weight)


def _weight(form: WeightFormat | None, shape: tuple[int, int, int]) -> Any:
    if form is None:
        return pack(jnp.ones(shape, jnp.bfloat16))
    codes = np.random.default_rng(0).integers(0, 1 << form.bits, shape, dtype=np.uint8)
    arrays = form.arrays(shape)
    ones = {part: pack_groups(jnp.ones(*arrays[part])) for part in arrays.keys() - {"codes"}}
    return GroupedCodes(pack_codes(codes, bits=form.bits), **ones)


def by_format(library: Library, matrix: str, formats: list[str], tokens: list[int], rounds: int) -> Iterator[Row]:
    """Yield a row for each number of tokens and format."""
    inputs, outputs = MATRICES[matrix]
    stacks, reader = {name: Stack(library, name, inputs, outputs) for name in formats}, Reader()
    for count in tokens:
        x = jax.random.normal(jax.random.key(0), (count, inputs), jnp.bfloat16)
        taken = turns({name: stack.timed(x) for name, stack in stacks.items()} | {"read": reader}, rounds)
        read = reader.nbytes / taken["read"]
        for name, stack in stacks.items():
            each = taken[name] / stack.layers
            row = {
                "matrix": matrix,
                "tokens": count,
                "format": name,
                "us": round(1e6 * np.median(each), 1),
                "fastest_us": round(1e6 * each.min(), 1),
                "gbps": round(stack.nbytes / each.min() / 1e9, 1),
                "read_gbps": round(read.max() / 1e9, 1),
                "of_read": round(np.median(each * read / stack.nbytes), 2),
                "fastest_of_read": round(each.min() * read.max() / stack.nbytes, 2),
                "gops": round(2 * count * inputs * outputs / each.min() / 1e9),
            }
            if "bf16" in taken:
                row["of_bf16_tokens"] = round(np.median(taken["bf16"] / stacks["bf16"].layers / each), 2)
            yield row


def of_experts(library: Library, dtype: str, tokens: list[int], rounds: int) -> Iterator[Row]:
    """Yield a row for each number of tokens."""
    bandwidth, rate = bytes_per_second(), max(flops_per_second(dtype), _product_rate(library, dtype))
    graph, params = _draw(dtype)
    programs = {
        name: _layers_of(graph, params, kernels) for name, kernels in (("native", native(library)), ("xla", REFERENCE))
    }
    of_expert = 3 * WIDTH * EXPERTS.inner
    for count in tokens:
        x = jax.random.normal(jax.random.key(100), (count, WIDTH), dtype)
        seconds = fastest({name: partial(program, x) for name, program in programs.items()}, rounds)
        used = _experts_read(params, x)
        by_bytes = used * of_expert * jnp.dtype(dtype).itemsize / bandwidth
        by_flops = 2 * count * EXPERTS.per_token * of_expert / rate
        times = {f"{name}_ms": taken / LAYERS for name, taken in seconds.items()}
        times |= {"bytes_ms": by_bytes, "flops_ms": by_flops}
        yield {
            "dtype": dtype,
            "tokens": count,
            "experts_read": round(used, 1),
            **{name: round(1e3 * taken, 2) for name, taken in times.items()},
            "of_ideal": round(max(by_bytes, by_flops) / times["native_ms"], 2),
        }


def _draw(dtype: str) -> tuple[Any, Params]:
    """Return the layers' module without values, and random parameters by path: (value, whether it is a matrix)."""
    graph, state = nnx.split(
        nnx.eval_shape(lambda: MoE(EXPERTS, WIDTH, dtype=dtype, rngs=nnx.Rngs(0), stack=(LAYERS,)))
    )
    params = {}
    for number, (path, leaf) in enumerate(nnx.to_flat_state(state)):
        shape = leaf.get_raw_value().shape
        value = jax.random.normal(jax.random.key(number), shape, dtype) * shape[-1] ** -0.5
        params[path] = value.astype(dtype), isinstance(leaf, Matrix)
    return graph, params


def _layers_of(graph: Any, params: Params, kernels: Kernels) -> Callable[[jax.Array], Any]:
    """Return a program of what all layers make of x, added to it."""
    placed = {path: place_matrix(value, kernels) if is_matrix else value for path, (value, is_matrix) in params.items()}

    @jax.jit
    def program(placed: Params, x: jax.Array) -> Any:
        flat: Any = {path: nnx.Param(value) for path, value in placed.items()}
        layers = nnx.merge(graph, nnx.from_flat_state(flat))
        nowhere, num_tokens = jnp.arange(len(x)), jnp.int32(len(x))
        tokens, zero = BlockTokens(nowhere, (nowhere,), num_tokens), jnp.int32(0)
        at = LayerContext(tokens, Positional(), zero, 0, zero, None, kernels)

        def visit(layer: Any, _here: Any, total: jax.Array) -> Any:
            return layer(x, at, total)

        return fold_layers([layers], alike(LAYERS), visit, x, unrolled=kernels.separate_layers)

    return partial(program, placed)


def _experts_read(params: Params, x: jax.Array) -> float:
    """Return the mean number of experts that the tokens choose in a layer."""
    used = []
    for router in params["router", "weight"][0]:
        logits = jnp.matmul(x, router.T, preferred_element_type=jnp.float32)
        used.append(np.count_nonzero(np.diff(route(EXPERTS, logits, jnp.int32(len(x))).starts)))
    return float(np.mean(used))


def _product_rate(library: Library, dtype: str) -> float:
    """Return FLOPs per second of the native product of 512 rows with a matrix that no cache holds."""
    rows, inputs, outputs = 512, 1024, 16384
    program = jax.jit(partial(library.packed_product, out_features=outputs))
    arguments = jnp.ones((rows, inputs), dtype), pack(jnp.ones((1, outputs, inputs), dtype)), jnp.int32(0)
    return 2 * rows * inputs * outputs / fastest({"": partial(program, *arguments, jnp.int32(rows))}, 5)[""]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", metavar="DTYPE,...", help="measure experts in these dtypes")
    parser.add_argument("--matrices", default=",".join(MATRICES))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--tokens", default="1,4,256")
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args(arguments)
    tokens = [int(count) for count in args.tokens.split(",")]
    with TemporaryDirectory() as directory:
        library = load(Path(directory))
    if args.experts:
        rows = (row for dtype in args.experts.split(",") for row in of_experts(library, dtype, tokens, args.rounds))
    else:
        formats, matrices = args.formats.split(","), args.matrices.split(",")
        rows = (row for name in matrices for row in by_format(library, name, formats, tokens, args.rounds))
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
