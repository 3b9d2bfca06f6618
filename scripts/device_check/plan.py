"""The parts: in which order, for how long, and in which process."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

TOTAL_SECONDS = 530.0
"""When a run ends, whatever it is waiting for."""
MAIN = "main"
"""The process that runs what a server would."""
_NO_HOLD = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Leaves the device's memory to others than JAX."""


@dataclass(frozen=True)
class PartPlan:
    """``entry``: module of this package and function, called as function(part, sizes, shared). Parts that follow one
    another with the same ``process`` run in one. ``environment`` is added to the run's own, XLA_FLAGS to those there.
    One that only ``compares`` fails nothing when its process crashes or hangs."""

    seconds: float
    entry: str
    process: str = MAIN
    environment: Mapping[str, str] = field(default_factory=dict)
    compares: bool = False


PARTS = {
    "ceilings": PartPlan(35, "ceilings:run"),
    "attention": PartPlan(60, "attention:run"),
    "steps": PartPlan(95, "step_times:run"),
    "parity": PartPlan(35, "parity:run"),
    "repeatability": PartPlan(35, "repeatability:run"),
    "host": PartPlan(20, "host_times:run"),
    "opt_steps": PartPlan(35, "step_times:run_opt"),
    "offload": PartPlan(25, "offload:run"),
    "contiguous": PartPlan(15, "contiguous:run"),
    "launches": PartPlan(20, "launches:run"),
    "kernels": PartPlan(55, "kernel_checks:run", process="kernels"),
    "launches_plain": PartPlan(
        30,
        "launches:run_without_command_buffers",
        process="launches_plain",
        environment={"XLA_FLAGS": "--xla_gpu_enable_command_buffer="},
    ),
    "serving": PartPlan(25, "serving:run", process="serving"),
    "torch": PartPlan(15, "torch_attention:run", process="torch", compares=True, environment=_NO_HOLD),
    "transformers": PartPlan(
        30, "serving:run_transformers", process="transformers", compares=True, environment=_NO_HOLD
    ),
}
"""In the order in which they run: floors need the ceilings, and then come those that would be missed most."""


def deadlines(names: Iterable[str]) -> dict[str, float]:
    """Seconds after the start of a run of these parts at which each should have ended: what a part leaves over, those
    after it may use."""
    names = list(names)
    return dict(zip(names, accumulate(PARTS[name].seconds for name in names), strict=True))
