"""Time forms of products with quantized weights on this device, against bfloat16, and check each against float64.

    python -m scripts.gpu.quantized --out FILE.json [--dry-run]

A form is a layout of the codes and a place of the scales: after the product, or in the weight, which XLA multiplies
inside its kernel if it is told to (SUBCHANNEL). A program multiplies WEIGHTS matrices in turn, so that none is in a
cache.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.quantized_product import GroupedCodes, dequantized, pack_codes, pack_groups
from scripts.gpu.timing import seconds_of

GROUP = 128
"""Inputs that share a scale; and outputs, in blocks."""
WEIGHTS = 8
E4M3_MOST = 448.0
SUBCHANNEL = {"xla_gpu_experimental_enable_subchannel_dequantisation_fusion": True}
SHAPES = {"gate_up": (4096, 28672), "down": (14336, 4096)}
"""Inputs and outputs of Llama-3-8B's largest products."""
CHECKED = 256
"""Outputs compared with float64."""

Arrays = tuple[jax.Array, ...]
Multiply = Callable[..., jax.Array]


@dataclass(frozen=True)
class Form:
    """How a product is computed: ``multiply`` of x [T, I] and a weight's arrays, compiled with ``options``."""

    format: str
    multiply: Multiply
    options: tuple[tuple[str, bool], ...] = ()
    tolerance: float = 2.0**-6
    """Largest error of a product, relative to the largest product."""


def _dot(a: jax.Array, b: jax.Array, precision: lax.Precision = lax.Precision.HIGHEST) -> jax.Array:
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=jnp.float32)


def _plain(x: jax.Array, weight: jax.Array) -> jax.Array:
    return _dot(x, weight).astype(x.dtype)


def _after(x: jax.Array, codes: jax.Array, scales: jax.Array, *, swapped: bool = False) -> jax.Array:
    """Scales [O] of outputs, after the product."""
    numbers = codes.astype(x.dtype)
    y = _dot(numbers, x).T if swapped else _dot(x, numbers)
    return (y * scales.astype(jnp.float32)).astype(x.dtype)


def _within(x: jax.Array, codes: jax.Array, scales: jax.Array, *, swapped: bool = False) -> jax.Array:
    """Scales [O, G] of groups, or [O / GROUP, G] of blocks, in the weight."""
    (O, I), G = codes.shape, scales.shape[-1]  # noqa: E741
    grouped = codes.astype(x.dtype).reshape(len(scales), -1, G, GROUP)
    weight = (grouped * scales.astype(x.dtype)[:, None, :, None]).reshape(O, I)
    y = _dot(weight, x).T if swapped else _dot(x, weight)
    return y.astype(x.dtype)


def _each(x: jax.Array, codes: jax.Array, scales: jax.Array) -> jax.Array:
    """Scales [O] of outputs, in the weight."""
    return _dot(x, codes.astype(x.dtype) * scales.astype(x.dtype)[:, None]).astype(x.dtype)


def _corrected(x: jax.Array, codes: jax.Array, scales: jax.Array, zeros: jax.Array) -> jax.Array:
    """Scales [O, G] of groups in the weight, and their zero points [O, G] as a product with sums of inputs."""
    O, G = scales.shape  # noqa: E741
    weight = (codes.astype(x.dtype).reshape(O, G, GROUP) * scales.astype(x.dtype)[..., None]).reshape(O, -1)
    sums = x.astype(jnp.float32).reshape(len(x), G, GROUP).sum(axis=-1)
    correction = _dot(sums, zeros.astype(jnp.float32) * scales.astype(jnp.float32))
    return (_dot(x, weight) - correction).astype(x.dtype)


def _within_rows(x: jax.Array, codes: jax.Array, scales: jax.Array) -> jax.Array:
    """Scales [O, G] of groups, in a weight of three axes, two of which are contracted."""
    O, G = scales.shape  # noqa: E741
    weight = codes.astype(x.dtype).reshape(O, G, GROUP) * scales.astype(x.dtype)[..., None]
    y = lax.dot_general(
        x.reshape(len(x), G, GROUP),
        weight,
        (((1, 2), (1, 2)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return y.astype(x.dtype)


def _rounded(x: jax.Array, codes: jax.Array, scales: jax.Array, *, fast: bool = False) -> jax.Array:
    """x rounded to the dtype of the codes, by token; the scales of tokens and outputs [O] after the product."""
    most = 127.0 if codes.dtype == jnp.int8 else E4M3_MOST
    by_token = jnp.maximum(jnp.abs(x).max(axis=1).astype(jnp.float32), 1e-12) / most
    divided = x.astype(jnp.float32) / by_token[:, None]
    precision = lax.Precision.DEFAULT if fast else lax.Precision.HIGHEST
    if codes.dtype == jnp.int8:
        dimensions = (((1,), (1,)), ((), ()))
        whole = lax.dot_general(
            jnp.round(divided).astype(jnp.int8), codes, dimensions, preferred_element_type=jnp.int32
        )
        y = whole.astype(jnp.float32)
    else:
        y = _dot(divided.astype(codes.dtype), codes, precision)
    return (y * by_token[:, None] * scales.astype(jnp.float32)).astype(x.dtype)


def _packed(x: jax.Array, codes: jax.Array, scales: jax.Array, *, bits: int, group: int | None = None) -> jax.Array:
    """By the layout of the CPU's kernels, of which a matrix of numbers is written first."""
    weight = dequantized(GroupedCodes(codes, scales), bits=bits, group=group or x.shape[1])
    return _plain(x, weight.astype(x.dtype))


_SUB = tuple(SUBCHANNEL.items())
FORMS = {
    "bf16": Form("bf16", _plain),
    "int8_after": Form("int8", _after),
    "int4_group_subchannel": Form("int4_group", _within, _SUB),
    "e4m3_after": Form("e4m3", _after),
    "e4m3_w8a8": Form("e4m3", _rounded, tolerance=2.0**-4),
    "e4m3_group_subchannel": Form("e4m3_group", _within, _SUB),
    "e4m3_block_subchannel": Form("e4m3_block", _within, _SUB),
    "int4_zeros_subchannel": Form("int4_zeros", _corrected, _SUB),
    "int8_each_subchannel": Form("int8", _each, _SUB),
    "e4m3_each_subchannel": Form("e4m3", _each, _SUB),
    "int8_after_swapped": Form("int8", partial(_after, swapped=True)),
    "e4m3_after_swapped": Form("e4m3", partial(_after, swapped=True)),
    "int4_group_subchannel_swapped": Form("int4_group", partial(_within, swapped=True), _SUB),
    "int4_after": Form("int4", _after),
    "int8_group_subchannel": Form("int8_group", _within, _SUB),
    "int4_group_rows_subchannel": Form("int4_group", _within_rows, _SUB),
    "int8_w8a8": Form("int8", _rounded, tolerance=2.0**-4),
    "e4m3_w8a8_fast": Form("e4m3", partial(_rounded, fast=True), tolerance=2.0**-4),
    "int8_packed": Form("int8_packed", partial(_packed, bits=8)),
    "int4_group_packed": Form("int4_group_packed", partial(_packed, bits=4, group=GROUP)),
    "int4_group_plain": Form("int4_group", _within),
}
"""In the order in which they are compiled."""


def make_weight(kind: str, outputs: int, inputs: int, key: jax.Array) -> Arrays:
    """Return a random weight's arrays, whose products with normal numbers are near 1."""
    base, _, grouped = kind.removesuffix("_packed").partition("_")
    keys, spread = jax.random.split(key), inputs**-0.5
    normal = jax.random.normal(keys[0], (outputs, inputs), jnp.bfloat16)
    if base == "bf16":
        return (normal * jnp.bfloat16(spread),)
    columns = inputs // GROUP if grouped else 1
    rows = outputs // GROUP if grouped == "block" else outputs
    step = {"int8": 32.0, "int4": 2.5, "e4m3": 8.0}[base]
    scales = jax.random.uniform(keys[1], (rows, columns), jnp.float32, 0.5, 1.5) * spread / step
    scales = scales.astype(jnp.bfloat16)
    numbers = normal.astype(jnp.float32) * step
    if base == "e4m3":
        codes = numbers.astype(jnp.float8_e4m3fn)
    else:
        most = 127 if base == "int8" else 7
        codes = jnp.clip(jnp.round(numbers), -most, most).astype(jnp.int8)
    if kind.endswith("_packed"):
        bits = 4 if base == "int4" else 8
        offset = codes.astype(jnp.int16) + (1 << (bits - 1))
        return pack_codes(offset.astype(jnp.uint8), bits=bits), pack_groups(scales)
    if grouped == "zeros":
        zeros = jax.random.randint(keys[1], scales.shape, -2, 3).astype(jnp.int8)
        return codes.astype(jnp.int4), scales, zeros
    return codes.astype(jnp.int4) if base == "int4" else codes, scales if grouped else scales[:, 0]


def chain(multiply: Multiply, xs: list[jax.Array], weights: list[Arrays]) -> list[jax.Array]:
    """Multiply each x by its weight. No two products share an operand, which XLA would merge."""
    return [multiply(x, *weight) for x, weight in zip(xs, weights, strict=True)]


def wanted(kind: str, x: jax.Array, weight: Arrays, twin: Arrays | None) -> np.ndarray:
    """Return the first CHECKED outputs in float64. ``twin``: the same weight unpacked, if this one is packed."""
    arrays = weight if twin is None else twin
    codes = np.asarray(arrays[0][:CHECKED].astype(jnp.float32)).astype(np.float64)
    if len(arrays) > 2:
        codes -= np.repeat(np.asarray(arrays[2][:CHECKED]), GROUP, axis=1)
    if len(arrays) > 1:
        scales = np.asarray(arrays[1][:CHECKED].astype(jnp.float32)).astype(np.float64)
        if "block" in kind:
            scales = np.repeat(scales, GROUP, axis=0)[:CHECKED]
        codes *= np.repeat(scales, GROUP, axis=1) if scales.ndim == 2 and scales.shape[1] > 1 else scales.reshape(-1, 1)
    return np.asarray(x.astype(jnp.float32)).astype(np.float64) @ codes.T


def kernels_of(hlo: str) -> dict[str, int]:
    """Count what the program runs: custom calls by target, and fusions by kind."""
    entry = hlo[hlo.find("\nENTRY") :]
    targets = re.findall(r'custom_call_target="([^"]+)"', entry)
    fusions = re.findall(r"fusion\(.*?kind=(\w+).*", entry)
    triton = re.findall(r'"kind":"(__\w+)"', entry)
    return dict(Counter(targets + fusions + triton))


@dataclass(frozen=True)
class Case:
    """A form at one shape and number of tokens."""

    name: str
    shape: str
    tokens: int

    @property
    def form(self) -> Form:
        return FORMS[self.name]


class Bench:
    """Random weights of each format and shape, made once, and the programs of all cases."""

    def __init__(self, shapes: dict[str, tuple[int, int]], count: int) -> None:
        self._shapes, self._count = shapes, count
        self._make = jax.jit(make_weight, static_argnums=(0, 1, 2))
        self._weights: dict[tuple[str, str], list[Arrays]] = {}
        self._ready = 0.0

    def make_weights(self, kind: str, shape: str) -> None:
        """Make the weights of a format, of which those of packed codes are the same as of plain ones."""
        inputs, outputs = self._shapes[shape]
        keys = jax.random.split(jax.random.key(7), self._count)
        self._weights[kind, shape] = [self._make(kind, outputs, inputs, key) for key in keys]

    def xs(self, case: Case) -> list[jax.Array]:
        """Return random inputs, one for each weight."""
        shape = (self._count, case.tokens, self._shapes[case.shape][0])
        return list(jax.random.normal(jax.random.key(1), shape, jnp.bfloat16))

    def compile(self, case: Case) -> tuple[Any, float]:
        """Return the program of a case, and the seconds that it took."""
        started = time.perf_counter()
        lowered = jax.jit(partial(chain, case.form.multiply)).lower(
            self.xs(case), self._weights[case.form.format, case.shape]
        )
        program = lowered.compile(compiler_options=dict(case.form.options))
        return program, time.perf_counter() - started

    def measure(self, case: Case, program: Any, compile_seconds: float, repeats: int) -> dict[str, Any]:
        """Run and check a program."""
        kind, xs = case.form.format, self.xs(case)
        weights = self._weights[kind, case.shape]
        call = partial(program, xs, weights)
        twin = self._weights.get((kind.removesuffix("_packed"), case.shape)) if kind.endswith("_packed") else None
        product = np.asarray(call()[-1][:, :CHECKED].astype(jnp.float32)).astype(np.float64)
        exact = wanted(kind, xs[-1], weights[-1], None if twin is None else twin[-1])
        error = float(np.abs(product - exact).max() / np.abs(exact).max())
        seconds = median(seconds_of(call, repeats, calls=4)) / self._count
        moved = sum(_bytes(part) for part in weights[0])
        return {
            "microseconds": seconds * 1e6,
            "weight_bytes": moved,
            "terabytes_per_second": moved / seconds / 1e12,
            "error": error,
            "right": error <= case.form.tolerance,
            "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
            "kernels": kernels_of(program.as_text()),
            "compile_seconds": round(compile_seconds, 2),
        }


def _bytes(array: jax.Array) -> int:
    bits = 4 if array.dtype == jnp.int4 else 8 * array.dtype.itemsize
    return array.size * bits // 8


def cases(shapes: dict[str, tuple[int, int]], tokens: tuple[int, ...], only: list[str]) -> Iterator[Case]:
    """Yield the cases, the most telling ones first."""
    for count in tokens:
        for name in FORMS:
            for shape in shapes:
                if not only or name in only:
                    yield Case(name, shape, count)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file for the results, in JSON, written after each")
    parser.add_argument("--seconds", type=float, default=40, help="no form is begun later than this")
    parser.add_argument("--threads", type=int, default=12, help="programs compiled at once")
    parser.add_argument("--form", action="append", default=[], choices=tuple(FORMS), help="only this form, repeatable")
    parser.add_argument("--dry-run", action="store_true", help="small shapes, for a CPU")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    dry = options.dry_run
    shapes = {"gate_up": (256, 512), "down": (512, 256)} if dry else SHAPES
    tokens, count, repeats = ((8, 16), 2, 2) if dry else ((64, 256), WEIGHTS, 7)
    results: dict[str, Any] = {}
    report = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "results": results}

    def left() -> float:
        return options.seconds - (time.perf_counter() - began)

    bench = Bench(shapes, count)
    planned = list(cases(shapes, tokens, options.form))
    kinds = dict.fromkeys((case.form.format.removesuffix("_packed"), case.shape) for case in planned)
    kinds |= dict.fromkeys((case.form.format, case.shape) for case in planned)
    with ThreadPoolExecutor(options.threads) as pool:
        list(pool.map(lambda one: bench.make_weights(*one), kinds))
        report["weights_seconds"] = round(time.perf_counter() - began, 2)

        def compiled(case: Case) -> tuple[Any, float] | None:
            return bench.compile(case) if left() > 0 else None

        programs: dict[Case, Future[Any]] = {case: pool.submit(compiled, case) for case in planned}
        # All compile first: a program that is tuned meanwhile runs on the device too.
        outcomes = {case: _outcome(future) for case, future in programs.items()}
    report["compiled_seconds"] = round(time.perf_counter() - began, 2)
    for case, outcome in outcomes.items():
        name = f"{case.name}_{case.shape}_{case.tokens}"
        if isinstance(outcome, str):
            results[name] = {"failure": outcome}
        else:
            try:
                program, compile_seconds = outcome
                results[name] = bench.measure(case, program, compile_seconds, repeats)
            except Exception as error:  # of one form; the others are still worth their time
                results[name] = {"failure": f"{type(error).__name__}: {error}"[:500]}
        print(name, json.dumps(results[name]), flush=True)
        report["seconds"] = round(time.perf_counter() - began, 2)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(row.get("right") for row in results.values()) else 1


def _outcome(future: Future[Any]) -> Any:
    try:
        return future.result() or "not reached: no time was left"
    except Exception as error:  # of one form's compilation
        return f"{type(error).__name__}: {error}"[:500]


if __name__ == "__main__":
    sys.exit(main())
