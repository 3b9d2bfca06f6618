"""Describe the rows of the check, and the processes that they run in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOTAL_SECONDS = 530.0
"""Seconds after which a run ends in any case."""
MEMORY_FRACTION = "0.9"
"""JAX's share of the device's memory: the default of ``jaxgen serve --gpu-memory-utilization``."""

Registers = tuple[int, int]
"""Registers of a thread in the warpgroup that fetches, and in the warpgroups that compute."""
REGISTERS: Registers = (40, 232)
OTHER_REGISTERS: Registers = (24, 240)
"""Registers to try where kernels with two computing warpgroups do not run with REGISTERS."""


@dataclass(frozen=True)
class Process:
    """Settings of a worker's process. ``environment`` is added to the run's own; XLA_FLAGS are appended."""

    environment: Mapping[str, str] = field(default_factory=dict)
    opens_device: bool = True
    """Whether JAX opens the device before the first row, so that this does not count towards the row's limit."""
    compiles_afresh: bool = False
    """Whether it works without the compilation cache that the other processes share."""


_NO_HOLD = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Allocates the device's memory only as it is needed."""
PROCESSES = {
    "engine": Process(),
    "smoke": Process(_NO_HOLD),
    "profiler": Process({"XLA_FLAGS": "--xla_enable_command_buffers_during_profiling=true"}),
    "plain launches": Process({"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}),
    "trial skip_profiled": Process(),
    "trial concurrent": Process(),
    "afresh": Process(compiles_afresh=True),
    "tools": Process(_NO_HOLD, opens_device=False),
    "server": Process(opens_device=False),
}
"""Processes by name. "profiler" sets a flag without which XLA runs command buffers as plain launches while profiled."""


@dataclass(frozen=True)
class PlannedRow:
    """A row. ``entry``: a module of scripts.gpu.rows and a function, called as function(bench, *arguments).

    The function prepares: it compiles and makes inputs, and returns the function that runs, without arguments, to a
    Measurement. Where ``splits`` is False it does all at once, since what it calls compiles when it likes.

    ``configuration`` is marked as bad if the process is lost in this row. A row is not run if one of the configurations
    in ``needs`` is bad; but where all that are bad with REGISTERS have run with OTHER_REGISTERS, the row uses these.
    ``instead_of``: run only if that row was lost.
    """

    name: str
    part: str
    entry: str
    arguments: tuple[Any, ...] = ()
    limit: float = 20.0
    """Seconds of running after which the process is killed. Neither compiling nor the start of a process counts."""
    compile_limit: float = 120.0
    """Seconds of preparing after which the process is killed."""
    splits: bool = True
    process: str = "engine"
    configuration: str | None = None
    needs: tuple[str, ...] = ()
    registers: Registers | None = None
    """None: REGISTERS, or OTHER_REGISTERS as described above."""
    instead_of: str | None = None
    reads: tuple[str, ...] = ()
    """Rows whose results it gets."""
    compares: bool = False
    """Whether it uses other software or a tool: its loss is not a failure."""


def attention_configuration(kind: str, head_dim: int, warpgroups: int) -> str:
    """Return the configuration of an attention kernel with ``warpgroups`` that compute and one that fetches."""
    return f"attention of {kind}, heads of {head_dim}, 1+{warpgroups} warpgroups"
