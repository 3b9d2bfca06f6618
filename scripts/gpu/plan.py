"""What a row of the check is, and the processes that rows run in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOTAL_SECONDS = 530.0
"""When a run ends, whatever it is doing."""
MEMORY_FRACTION = "0.9"
"""Of the device's memory, for JAX: the default of ``jaxgen serve --gpu-memory-utilization``."""

Registers = tuple[int, int]
"""Of a thread of the warpgroup that fetches, and of those that compute."""
REGISTERS: Registers = (40, 232)
OTHER_REGISTERS: Registers = (24, 240)
"""To try where kernels with two warpgroups that compute do not run with the first ones."""


@dataclass(frozen=True)
class Process:
    """How a worker's process is set up. ``environment`` is added to the run's own, XLA_FLAGS to those there."""

    environment: Mapping[str, str] = field(default_factory=dict)
    opens_device: bool = True
    """JAX takes the device before the first row, whose limit then has none of the seconds that this takes."""
    compiles_afresh: bool = False
    """Without the compilation caches that all others share."""


_NO_HOLD = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Takes the device's memory as it is needed."""
PROCESSES = {
    "engine": Process(),
    "smoke": Process(_NO_HOLD),
    "profiler": Process({"XLA_FLAGS": "--xla_enable_command_buffers_during_profiling=true"}),
    "plain launches": Process({"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}),
    "afresh": Process(compiles_afresh=True),
    "tools": Process(_NO_HOLD, opens_device=False),
    "torch": Process(_NO_HOLD, opens_device=False),
}
"""XLA runs command buffers as plain launches while it is profiled, unless told otherwise."""


@dataclass(frozen=True)
class PlannedRow:
    """A row. ``entry`` is a module of this package and a function, called as function(bench, *arguments).

    ``configuration`` is what is marked bad if the process is lost in this row, and ``needs`` are the configurations
    without which the row is not run: where one is bad with the first pair of registers, and has been seen to run with
    the other, it runs with the other. ``instead_of``: only if that row was lost.
    """

    name: str
    part: str
    entry: str
    arguments: tuple[Any, ...] = ()
    limit: float = 20.0
    """Seconds after which the process is killed."""
    process: str = "engine"
    configuration: str | None = None
    needs: tuple[str, ...] = ()
    registers: Registers | None = None
    """None: the first pair that may be taken."""
    instead_of: str | None = None
    reads: tuple[str, ...] = ()
    """Rows whose results it is given."""
    compares: bool = False
    """With other software, or through a tool: to lose it is no failure."""


def attention_configuration(kind: str, head_dim: int, warpgroups: int) -> str:
    """Of the kernel that walks contexts; one more warpgroup fetches than ``warpgroups`` compute."""
    return f"attention of {kind}, heads of {head_dim}, 1+{warpgroups} warpgroups"
