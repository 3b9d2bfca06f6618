"""Compile for a GPU that is not there, to machine code, and read what the compiler says of it.

Needs the CUDA plugin and ptxas of .venv-aot-VERSION (scripts/ci/aot_constraints.txt) and JAX_PLATFORMS=cpu. One target
per process: after one, the code of another may compile that a fresh process refuses. Compiled is all it says: nothing
of results, and cuDNN calls compile to anything.
"""

import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental import topologies
from jax.experimental.mosaic.gpu.core import artificial_shared_memory_limit
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding, use_abstract_mesh

from jaxgen.kernels.kernels import Kernels
from jaxgen.runner.program import Program
from tests.aot.addresses import misaligned_copies

STEP_DONATES = (1, 2)
"""Arguments of a step that it updates in place: cache and rows."""


@dataclass(frozen=True)
class _Device(AbstractDevice):
    compute_capability: str
    """As real GPUs have it; Mosaic takes sm_90 where there is none."""
    shared_memory_per_block_optin: int
    """Bytes that a thread block may have."""


@dataclass(frozen=True)
class Target:
    """A GPU by its public specifications. ``device`` is what Pallas asks for, ``info`` what XLA's target description
    has beside what all share."""

    device: _Device
    capability: str
    info: str

    @property
    def major(self) -> int:
        """Of the compute capability."""
        return int(self.device.compute_capability.split(".")[0])

    @property
    def text(self) -> str:
        """A GpuTargetConfigProto.

        It names driver, runtime and toolkit: without a driver XLA keeps loops, conditionals and calls of Pallas kernels
        out of CUDA graphs, and the program is one that no device runs.
        """
        return f"""
            gpu_device_info {{
              cuda_compute_capability {{ {self.capability} }}
              threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
              shared_memory_per_block: 49152  registers_per_core_limit: 65536  registers_per_block_limit: 65536
              block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
              core_count: {self.device.num_cores}  {self.info}
              shared_memory_per_block_optin: {self.device.shared_memory_per_block_optin}
              driver_version: "13.0.0"
              runtime_version: "13.0.0"
              compile_time_toolkit_version: "13.0.0"
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 }}
            runtime_version {{ major: 13 minor: 0 patch: 0 }}
            device_description_str: "{self.device.device_kind}"
        """


H200 = Target(
    _Device("NVIDIA H200", 132, "gpu", compute_capability="9.0", shared_memory_per_block_optin=232_448),
    "major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES",
    "shared_memory_per_core: 233472  fpus_per_core: 128"
    "  memory_bandwidth: 4814000000000  l2_cache_size: 62914560  clock_rate_ghz: 1.98"
    "  device_memory_size: 150119055360",
)
A100 = Target(
    _Device("NVIDIA A100-SXM4-80GB", 108, "gpu", compute_capability="8.0", shared_memory_per_block_optin=166_912),
    "major: 8 minor: 0",
    "shared_memory_per_core: 167936  fpus_per_core: 64"
    "  memory_bandwidth: 2039000000000  l2_cache_size: 41943040  clock_rate_ghz: 1.41"
    "  device_memory_size: 84986691584",
)
B200 = Target(
    _Device("NVIDIA B200", 148, "gpu", compute_capability="10.0", shared_memory_per_block_optin=232_448),
    "major: 10 minor: 0 feature_extension: ACCELERATED_FEATURES",
    "shared_memory_per_core: 233472  fpus_per_core: 128"
    "  memory_bandwidth: 8000000000000  l2_cache_size: 132644864  clock_rate_ghz: 1.965"
    "  device_memory_size: 191000000000",
)
RTX_5090 = Target(
    _Device("NVIDIA GeForce RTX 5090", 170, "gpu", compute_capability="12.0", shared_memory_per_block_optin=101_376),
    "major: 12 minor: 0 feature_extension: ACCELERATED_FEATURES",
    "shared_memory_per_core: 102400  fpus_per_core: 128"
    "  memory_bandwidth: 1792000000000  l2_cache_size: 100663296  clock_rate_ghz: 2.41"
    "  device_memory_size: 34100000000",
)
TARGETS = {"h200": H200, "a100": A100, "b200": B200, "rtx5090": RTX_5090}


WARPGROUP = 128
"""Threads."""


@dataclass(frozen=True)
class MosaicKernel:
    """What ptxas says of one Pallas kernel: registers of a thread, and bytes."""

    name: str
    threads: int
    """Of a thread block."""
    registers: int
    """With which it is launched."""
    reallocated: tuple[tuple[str, int], ...]
    """The distinct setmaxnreg instructions: "dec" or "inc", and registers of a thread."""
    spill_stores: int
    spill_loads: int
    shared_memory: int
    """Dynamic, of a thread block."""
    misaligned: tuple[str, ...] = ()
    """Bulk copies whose address in shared memory may not be aligned."""

    @property
    def register_trouble(self) -> str | None:
        """Why the thread block would wait forever for registers, or do what is undefined; None: it would not.

        ``setmaxnreg.inc`` takes from what the block was launched with and ``setmaxnreg.dec`` has given back, and waits
        until that is enough (PTX ISA, setmaxnreg). One warpgroup, or each of two, gives back, and all others take.
        """
        if not self.reallocated:
            return None
        fewer = [count for action, count in self.reallocated if action == "dec"]
        increased = [count for action, count in self.reallocated if action == "inc"]
        if not fewer or len(increased) != 1:
            return f"{self.reallocated} are not one number for each kind of warpgroup, of which one computes"
        (more,) = increased
        if not max(fewer) <= self.registers <= more:
            return f"launched with {self.registers} registers, decreased to {fewer} and increased to {more}"
        computing, pool = self.threads - WARPGROUP * len(fewer), self.threads * self.registers
        wanted = WARPGROUP * sum(fewer) + computing * more
        return f"{wanted} registers wanted of a thread block's {pool}" if wanted > pool else None


_INSTRUCTION = re.compile(r"^ *(?:ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:,|$)", re.MULTILINE)
_OPERAND = re.compile(r"%([\w.-]+)")
_SHAPE = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")


def _bytes(dtype: str, dimensions: str) -> int:
    bits = {"s4": 4, "u4": 4, "pred": 8}.get(dtype) or int(re.findall(r"^[a-z]+(\d+)", dtype)[0])
    return math.prod(map(int, filter(None, dimensions.split(",")))) * bits // 8


_MOSAIC_CALL = 'custom_call_target="mosaic_gpu'


@dataclass(frozen=True)
class Executable:
    """A compiled program: bytes of memory, HLO text after optimisation, what the host starts, and its Pallas kernels,
    without those that this process had compiled before, which jax 0.12 keeps."""

    arguments: int
    outputs: int
    """Beside the arguments that are updated in place."""
    temporaries: int
    aliased: int
    hlo: str
    thunks: str
    """XLA's list of what runs, after its passes: a line for each, indented where it is part of the one above."""
    kernels: tuple[MosaicKernel, ...]

    @property
    def num_mosaic(self) -> int:
        """Calls of Pallas kernels."""
        return self.hlo.count(_MOSAIC_CALL)

    @property
    def started(self) -> list[str]:
        """Kinds of thunks that the host starts one after another: kCommandBuffer is a CUDA graph."""
        return re.findall(r"^\d+: (k\w+)", self.thunks, flags=re.MULTILINE)

    @property
    def num_operations(self) -> int:
        """Thunks in all, in every branch, and in the body of each loop once."""
        return len(re.findall(r"^ *\d+: k\w+", self.thunks, flags=re.MULTILINE))

    def loops_with(self, array: jax.ShapeDtypeStruct) -> list[str]:
        """The HLO loops that carry an array of as many elements as this one."""
        loops = re.finditer(r"^.* = \((.*)\) while\(.*$", self.hlo, flags=re.MULTILINE)
        return [loop[0] for loop in loops if array.size in map(_elements, re.findall(r"\w+\[([\d,]*)\]", loop[1]))]

    @property
    def fused_mosaic(self) -> list[str]:
        """Fusions around a call of a Pallas kernel. XLA makes one of a call and the slices that are its operands, and
        passes offsets into the sliced arrays, which Mosaic refuses unless they are multiples of 256 bytes."""
        fused = set(re.findall(r"^.* fusion\(.*calls=%?([\w.-]+)", self.hlo, flags=re.MULTILINE))
        computations = re.finditer(r"^%?([\w.-]+) \(.*?^}", self.hlo, flags=re.MULTILINE | re.DOTALL)
        return [one[1] for one in computations if one[1] in fused and _MOSAIC_CALL in one[0]]

    @property
    def moved(self) -> int:
        """Bytes of the operands and results of all kernels of the program, outside of loops and branches."""
        entry = self.hlo[self.hlo.index("\nENTRY") :]
        sizes, moved = {}, 0
        for name, shape, kind, operands in _INSTRUCTION.findall(entry):
            sizes[name] = sum(_bytes(dtype, dimensions) for dtype, dimensions in _SHAPE.findall(shape))
            if kind in ("fusion", "custom-call", "copy"):
                moved += sizes[name] + sum(sizes[operand] for operand in _OPERAND.findall(operands))
        return moved

    def copies(self, array: jax.ShapeDtypeStruct, kinds: str = "copy|copy-start") -> list[str]:
        """The HLO instructions of these kinds that make an array of as many elements as this one."""
        found = re.finditer(rf"^.* = \(?\w+\[([\d,]*)\]\S* (?:{kinds})\(.*$", self.hlo, flags=re.MULTILINE)
        return [line[0] for line in found if _elements(line[1]) == array.size]


def _elements(dimensions: str) -> int:
    """Of an array with these dimensions, as HLO has them between brackets."""
    return math.prod(map(int, filter(None, dimensions.split(","))))


def lower_for(target: Target, function: Callable[..., Any], args: Sequence[Any], donate: Sequence[int] = ()) -> Any:
    """Lower ``function`` of arguments shaped like ``args`` (pytrees).

    ValueError if a kernel takes more shared memory than the target has. Mosaic asks no device that is not there.
    """
    mesh, room = AbstractMesh((), (), abstract_device=target.device), target.device.shared_memory_per_block_optin
    with use_abstract_mesh(mesh), artificial_shared_memory_limit(room):
        return jax.jit(function, donate_argnums=donate).trace(*args).lower(lowering_platforms=("cuda",))


def compile_for(
    target: Target,
    function: Callable[..., Any],
    args: Sequence[Any],
    donate: Sequence[int] = (),
    *,
    read: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Executable:
    """Compile ``function`` of arguments shaped like ``args`` (pytrees) for a target.

    ``read`` False: nothing is asked of its Pallas kernels, and equal ones are compiled once. ``options``: of XLA.
    """
    topology = topologies.get_topology_desc(platform="cuda", target_config=target.text, topology="1x1x1")
    sharding = SingleDeviceSharding(topology.devices[0])
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tuple(args))
    with tempfile.TemporaryDirectory() as dump, pytest.MonkeyPatch.context() as patch:
        if read:
            patch.setenv("MOSAIC_GPU_DUMP_TO", dump)
        with use_abstract_mesh(AbstractMesh((), (), abstract_device=target.device)):
            lowered = lower_for(target, function, shapes, donate)
            compiled: Any = lowered.compile(compiler_options={"xla_dump_to": dump, **(options or {})})
        kernels = tuple(_read(Path(dump)))
        # Of a program that no pass of thunks changes there is only the first list.
        names = (".thunk_sequence_after_thunk_passes.txt", ".thunk_sequence.txt")
        thunks = next(path for name in names for path in Path(dump).glob(f"*{name}"))
        memory = compiled.memory_analysis()
        return Executable(
            memory.argument_size_in_bytes,
            memory.output_size_in_bytes - memory.alias_size_in_bytes,
            memory.temp_size_in_bytes,
            memory.alias_size_in_bytes,
            compiled.as_text(),
            thunks.read_text(),
            kernels,
        )


def compile_program(target: Target, program: Program, kernels: Kernels) -> Executable:
    """Compile one of a step's programs as the engine does, without reading what ptxas says."""
    options = dict(kernels.compiler_options)
    return compile_for(target, program.function, program.shapes, program.donated, read=False, options=options)


_PTXAS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads\s.*?Used (\d+) registers", re.DOTALL)
_LAUNCH = re.compile(r"dynamic_shared_memory_size %c(\d+)_i32")
_THREADS = re.compile(r"\.maxntid (\d+), 1, 1")
_REALLOCATED = re.compile(r"setmaxnreg\.(dec|inc)\.sync\.aligned\.u32\s+(\d+);")


def _read(dump: Path) -> Iterator[MosaicKernel]:
    """From what Mosaic leaves of kernels in MOSAIC_GPU_DUMP_TO; ValueError if it is not as expected.

    Files are <kernel>_<number>.<kind>, where jax 0.12 numbers what it lowers and what it compiles apart.
    """

    def texts(kind: str) -> dict[str, list[str]]:
        names = [path.name.removesuffix(kind).rsplit("_", 1) for path in dump.glob(f"*{kind}")]
        by_kernel: dict[str, list[str]] = {}
        for name, number in sorted(names, key=lambda parts: int(parts[1])):
            by_kernel.setdefault(name, []).append((dump / f"{name}_{number}{kind}").read_text())
        return by_kernel

    lowered, assembly = texts(".after_layout_inference.txt"), texts(".ptx")
    for name, compiled in texts(".ptxas").items():
        for ptxas, module, ptx in zip(compiled, lowered[name], assembly[name], strict=True):
            found, launched, threads = _PTXAS.search(ptxas), _LAUNCH.search(module), _THREADS.search(ptx)
            if found is None or launched is None or threads is None:
                raise ValueError(f"not as expected: {sorted(path.name for path in dump.iterdir())}")
            stores, loads, registers = map(int, found.groups())
            reallocated = {(action, int(count)) for action, count in _REALLOCATED.findall(ptx)}
            yield MosaicKernel(
                name,
                int(threads[1]),
                registers,
                tuple(sorted(reallocated)),
                stores,
                loads,
                int(launched[1]),
                tuple(misaligned_copies(ptx)),
            )
