"""Add up a compiled program: launches, bytes, FLOPs and the expected time of each kernel, read from its HLO.

A kernel is expected to take ``max(bytes / copy rate, FLOPs / matrix rate) + LAUNCH``. Bytes count the operands
that it reads and its results, once each, as if no cache kept any. A slice or a gather reads a part of its operand. A
buffer that is updated in place counts only the update. FLOPs count matrix products alone, 2 per multiply-add. The
program does not say what a Pallas kernel does with its operands: ``scripts.gpu.roofline.pallas`` says it for the load
of the step.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scripts.gpu.roofline.hlo import IN_PLACE, PARTS, VIEWS, Computation, Instruction, Module, module_of
from scripts.gpu.roofline.pallas import COSTS, Call, Load

LAUNCH = 2e-6
"""Seconds from the end of what a kernel waits for until the kernel works, and from its work to its end."""
PRODUCTS, ATTENTION, EXPERTS, OTHER = "products", "attention", "experts", "other"
_KINDS = {"expert_product": EXPERTS} | dict.fromkeys(("dense_product", "gated_product"), PRODUCTS)
_KINDS |= dict.fromkeys(("sum_of_parts", "rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"), OTHER)
"""Of Pallas kernels by their names; the others are of attention."""
_FREE = VIEWS | {"parameter", "constant", "tuple", "get-tuple-element", "after-all", "partition-id"}
_ENDS = ("-done", "-update")
_CALLS = {"call", "async-start"}
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_FLOATS_OF_8 = {"f8e4m3fn", "f8e5m2"}


@dataclass(frozen=True)
class Rates:
    """What a device reaches: bytes per second, and FLOPs per second of bfloat16."""

    copy: float
    matrix: float

    def flops(self, dtype: str) -> float:
        """Of products of this dtype, as HLO names it: twice as many of 8 bits, a tenth of float32, without TF32."""
        if dtype in _FLOATS_OF_8 or dtype == "s8":
            return 2 * self.matrix
        return self.matrix / 10 if dtype in ("f32", "f64") else self.matrix


@dataclass(frozen=True)
class Kernel:
    """One launch, or ``launches`` of them that are alike. ``flops`` are of products of ``dtype``."""

    name: str
    kind: str
    bytes: int
    flops: int = 0
    dtype: str = ""
    launches: int = 1

    def seconds(self, rates: Rates) -> float:
        """Expected time of all its launches."""
        work = max(self.bytes / rates.copy, self.flops / rates.flops(self.dtype) if self.flops else 0.0)
        return self.launches * (work + LAUNCH)


class Total(NamedTuple):
    """Sums over kernels. ``seconds``: expected."""

    launches: int
    bytes: int
    flops: int
    seconds: float


def total(kernels: Iterable[Kernel], rates: Rates) -> Total:
    """Add up kernels."""
    one = list(kernels)
    return Total(
        sum(kernel.launches for kernel in one),
        sum(kernel.launches * kernel.bytes for kernel in one),
        sum(kernel.launches * kernel.flops for kernel in one),
        sum(kernel.seconds(rates) for kernel in one),
    )


def by_kind(kernels: Iterable[Kernel], rates: Rates) -> dict[str, Total]:
    """Add up the kernels of each kind."""
    listed = list(kernels)
    return {
        kind: total((one for one in listed if one.kind == kind), rates)
        for kind in (PRODUCTS, ATTENTION, EXPERTS, OTHER)
    }


def figures(kernels: Iterable[Kernel], rates: Rates) -> dict[str, Any]:
    """Return a bill for the file of ``python -m scripts.gpu``: sums, and expected seconds by kind."""
    listed = list(kernels)
    whole = total(listed, rates)
    return whole._asdict() | {"by_kind": {kind: one.seconds for kind, one in by_kind(listed, rates).items()}}


def bill_of(text: str, load: Load) -> list[Kernel]:
    """Return the kernels that a program runs, in order.

    Raises ValueError if it has a branch, a loop of an unknown number of turns or an unknown Pallas kernel: what these
    cost is not in it.
    """
    module = module_of(text)
    return list(_Reader(module, load).of(module.entry))


@dataclass(frozen=True)
class _Reader:
    module: Module
    load: Load

    def of(self, computation: Computation) -> Iterator[Kernel]:
        """Yield the kernels of a computation other than a fusion."""
        for one in computation.instructions:
            if one.opcode in _FREE or one.opcode.endswith(_ENDS):
                continue
            if one.opcode in _CALLS:
                yield from self.of(self.module.called(one, "calls", "to_apply", "called_computations"))
            elif one.opcode == "while":
                yield from self._loop(one)
            elif one.opcode == "conditional":
                raise ValueError(f"{one.name} is a branch: how often each side is taken is not in the program")
            elif one.opcode == "custom-call":
                yield self._custom(computation, one)
            elif one.opcode == "fusion":
                yield self._fusion(one)
            else:
                yield self._alone(computation, one)

    def _loop(self, loop: Instruction) -> Iterator[Kernel]:
        turns = _TRIPS.search(loop.attributes)
        if turns is None:
            raise ValueError(f"{loop.name} is a loop of an unknown number of turns ({loop.op_name})")
        for name in ("condition", "body"):
            for kernel in self.of(self.module.called(loop, name)):
                yield replace(kernel, launches=kernel.launches * int(turns[1]))

    def _fusion(self, fusion: Instruction) -> Kernel:
        inner, read = self.module.called(fusion, "calls"), 0
        for number in range(len(fusion.operands)):
            value = inner.parameter(number)
            read += value.arrays[0].bytes_of(self.module.elements_read(inner, value.name))
        flops, dtype = self._products(inner)
        kind = PRODUCTS if flops else OTHER
        return Kernel(fusion.name, kind, read + self.module.bytes_written(inner), flops, dtype)

    def _products(self, computation: Computation) -> tuple[int, str]:
        """Return the FLOPs of a computation's products, and the dtype in which the largest of them multiplies."""
        products = [(0, "")]
        for one in computation.instructions:
            if one.opcode == "fusion":
                products.append(self._products(self.module.called(one, "calls")))
            elif one.opcode == "dot":
                operands = [computation.arrays_of(operand)[0] for operand in one.operands[:2]]
                summed = math.prod(operands[0].shape[axis] for axis in one.numbers("lhs_contracting_dims"))
                widest = max(operands, key=lambda array: array.bits)
                products.append((2 * one.arrays[0].size * summed, widest.dtype))
        return sum(flops for flops, _ in products), max(products)[1]

    def _custom(self, computation: Computation, call: Instruction) -> Kernel:
        target = call.attribute("custom_call_target") or _quoted(call, "custom_call_target")
        arrays = [array for operand in call.operands for array in computation.arrays_of(operand)]
        if target.startswith("mosaic_gpu"):
            *_, name, _ = call.op_name.split("/")
            if name not in COSTS:
                raise ValueError(f"nothing says what the Pallas kernel {name} costs (scripts.gpu.roofline.pallas)")
            cost = COSTS[name](Call(arrays, call.arrays, self.load))
            return Kernel(name, _KINDS.get(name, ATTENTION), *cost)
        moved = sum(array.num_bytes for array in arrays)
        if not target.startswith("__cublas"):
            return Kernel(call.name, OTHER, moved + call.num_bytes)
        product, numbers = call.arrays[0], _gemm(call)
        summed = math.prod(arrays[0].shape[int(axis)] for axis in numbers["lhs_contracting_dimensions"])
        return Kernel(call.name, PRODUCTS, moved + product.num_bytes, 2 * product.size * summed, arrays[0].dtype)

    def _alone(self, computation: Computation, one: Instruction) -> Kernel:
        """An instruction that is a kernel by itself, such as a copy."""
        operands = [array.num_bytes for operand in one.operands for array in computation.arrays_of(operand)]
        if one.opcode in IN_PLACE:
            return Kernel(one.name, OTHER, 2 * operands[IN_PLACE[one.opcode]])
        written = one.arrays[0].num_bytes if one.opcode.startswith("copy") else one.num_bytes
        return Kernel(one.name, OTHER, written + (written if one.opcode in PARTS else sum(operands)))


def _quoted(one: Instruction, name: str) -> str:
    match = re.search(rf'\b{name}="([^"]*)"', one.attributes)
    return match[1] if match else ""


def _gemm(call: Instruction) -> Mapping[str, Any]:
    """Return the dimension numbers of a call of cuBLAS."""
    match = re.search(r'"dot_dimension_numbers":(\{[^}]*\})', call.attributes)
    if match is None:
        raise ValueError(f"{call.name} does not say which dimensions it sums over")
    numbers: Mapping[str, Any] = json.loads(match[1])
    return numbers
