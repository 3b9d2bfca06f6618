"""Measure the native CPU products by format of the weight, of a 1B Llama's shapes.

For each matrix and number of tokens the formats take turns, so that a slow moment of the machine meets all. Each walks
a stack of layers in one program, whose weights come from memory. Printed are the median and the smallest time of one
product. For the smallest time it also prints bytes of weights and operations a second. It compares that time with the
time in which all processors read as many bytes, and its tokens a second with those of bfloat16. Shares are medians of
the shares of each turn, next to the share of the smallest times.

    .venv/bin/python -m scripts.measure.quantized_time
    .venv/bin/python -m scripts.measure.quantized_time --formats bf16,int4/32 --tokens 1,16 --rounds 21
"""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.large_pages import use_large_pages
from jaxgen.weights.gguf.codes import LAYOUTS
from pallas_kernels.cpu.library import Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.packed_product import pack
from pallas_kernels.quantized_product import GroupedCodes, pack_codes, pack_groups

SHAPES = {"qkv": (2048, 3072), "out": (2048, 2048), "gate_up": (2048, 16384), "down": (8192, 2048)}
"""Inputs and outputs."""
FORMATS: dict[str, WeightFormat | None] = {
    "bf16": None,
    "int8": WeightFormat(8, None),
    "int8/128": WeightFormat(8, 128),
    "int4/32": WeightFormat(4, 32),
    "int4/64": WeightFormat(4, 64),
    "int4/128": WeightFormat(4, 128),
    **{name: layout.form for name, layout in LAYOUTS.items()},
}
"""None: it is not of codes. Those of GGUF files have their types' names."""
STACK_BYTES = 2**28
"""Of a stack in bfloat16: more than a processor's own caches hold."""
Timed = Callable[[], Any]


class Stack:
    """Layers of one matrix in one format, and the program that multiplies with each of them."""

    def __init__(self, library: Library, name: str, inputs: int, outputs: int) -> None:
        self.layers = max(1, STACK_BYTES // (2 * inputs * outputs))
        shape = (self.layers, outputs, inputs)
        form = FORMATS[name]
        if form is None:
            self._weight: Any = pack(jnp.ones(shape, jnp.bfloat16))
        else:
            codes = np.random.default_rng(0).integers(0, 1 << form.bits, shape, dtype=np.uint8)
            arrays = form.arrays(shape)
            ones = {part: pack_groups(jnp.ones(*arrays[part])) for part in arrays.keys() - {"codes"}}
            self._weight = GroupedCodes(pack_codes(codes, bits=form.bits), **ones)
        for part in jax.tree.leaves(self._weight):  # as the engine's
            use_large_pages(part.unsafe_buffer_pointer(), part.nbytes)
        self.nbytes = sum(part.nbytes for part in jax.tree.leaves(self._weight)) // self.layers

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
        return lambda: jax.block_until_ready(self._program(x, self._weight))


def seconds(programs: dict[str, Timed], rounds: int) -> dict[str, np.ndarray]:
    """Of each program in each of the rounds, in which they take turns; the first, which compiles, does not count."""
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds + 1):
        for name, program in programs.items():
            started = time.perf_counter()
            program()
            taken[name].append(time.perf_counter() - started)
    return {name: np.array(times[1:]) for name, times in taken.items()}


def measure(library: Library, matrix: str, formats: list[str], tokens: list[int], rounds: int) -> None:
    inputs, outputs = SHAPES[matrix]
    stacks = {name: Stack(library, name, inputs, outputs) for name in formats}
    arrays = [np.ones(2**25, np.float32) for _ in range(cpu_count() or 1)]
    with ThreadPoolExecutor(len(arrays)) as pool:
        for count in tokens:
            x = jax.random.normal(jax.random.key(0), (count, inputs), jnp.bfloat16)
            programs = {name: stack.timed(x) for name, stack in stacks.items()}
            taken = seconds(programs | {"read": lambda: list(pool.map(np.max, arrays))}, rounds)
            read = sum(array.nbytes for array in arrays) / taken["read"]
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
                    ratios = taken["bf16"] / stacks["bf16"].layers / each
                    row["of_bf16_tokens"] = round(np.median(ratios), 2)
                print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrices", default=",".join(SHAPES))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--tokens", default="1,4,256")
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    with TemporaryDirectory() as directory:
        library = load(Path(directory))
    for matrix in args.matrices.split(","):
        measure(library, matrix, args.formats.split(","), [int(one) for one in args.tokens.split(",")], args.rounds)


if __name__ == "__main__":
    main()
