"""Set a GPU's memory share and a CPU's threads, and prove a GPU's kernels, before JAX opens a device."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import jax
from jax._src import xla_bridge  # no public function tells whether a backend is initialized

from jaxgen.core.config import EngineOptions, KernelChoice, ModelConfig
from jaxgen.hardware.container import allowed_cores, num_cores
from jaxgen.hardware.nvidia import Gpu
from jaxgen.kernels.choice import made_for
from jaxgen.kernels.gpu_proof import gpu_sources
from jaxgen.kernels.proving.proof import judge
from jaxgen.kernels.proving.verdict import ServedShapes, Verdict
from jaxgen.sizing.memory import DEFAULT_BLOCK_SIZE, scheduler_config
from jaxgen.sizing.memory_request import narrow_width

logger = logging.getLogger(__name__)

_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Environment variables that JAX reads when it opens a GPU: at most one of them may be set."""
THREADS = "NPROC"
"""Environment variable from which XLA takes the number of its threads, when JAX opens a CPU."""


def is_open() -> bool:
    """Whether JAX has opened its devices in this process."""
    return xla_bridge.backends_are_initialized()


def share_memory(fraction: float) -> None:
    """Set the fraction of GPU memory that JAX will take, unless the environment sets one or JAX is open already."""
    if not is_open() and not any(name in os.environ for name in _FRACTIONS):
        os.environ[_FRACTIONS[0]] = str(fraction)


def limit_threads() -> None:
    """Let XLA's CPU have no more threads than a container's quota of time fills, unless the environment says how many.

    With more, threads that wait for each other use up the quota, and all stand still until the next period.
    """
    if not is_open() and THREADS not in os.environ and (cores := num_cores()) < allowed_cores():
        os.environ[THREADS] = str(cores)
        logger.info("threads that compute, as many as the container's quota of processor time fills: %d", cores)


def free_memory(device: jax.Device, *, was_open: bool) -> int | None:
    """Return the free bytes of JAX's memory pool on an accelerator, or None if JAX does not tell.

    ``was_open``: JAX opened the device before the engine existed, so the pool has another size; logged.
    """
    stats = device.memory_stats() if device.platform != "cpu" else None
    if not stats:
        return None
    free: int = stats["bytes_limit"] - stats["bytes_in_use"]
    if was_open:
        logger.info(
            "JAX was in use before the engine, which plans with the %.2f GiB that are free of what JAX took of the %s "
            "then, whatever gpu_memory_utilization says",
            free / 2**30,
            device.device_kind,
        )
    return free


def served_shapes(
    model: ModelConfig, options: EngineOptions, token_budget: int, budgets: Sequence[int] | None, room: int | None
) -> ServedShapes:
    """Return the attention shapes of the steps that a GPU will run. Raises ConfigError.

    ``room``: bytes of memory that may be used on top of the weights; None: unknown.

    Widths are ``token_budget``, unless the options name one, and that of the narrow program; with ``budgets`` their
    smallest and largest.
    """
    scheduler = scheduler_config(options, model, max(budgets or [token_budget]), is_cpu=False, room=room)
    widths = {scheduler.token_budget} if budgets is None else {min(budgets), max(budgets)}
    narrow = None if options.single_shape else narrow_width(scheduler, is_cpu=False)
    return ServedShapes.of(
        model,
        block_size=options.block_size or DEFAULT_BLOCK_SIZE,
        token_budgets=tuple(sorted(widths | ({narrow} if narrow else set()), reverse=True)),
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=scheduler.max_model_len,
    )


def judge_kernels(
    gpu: Gpu, model: ModelConfig, choice: KernelChoice, shapes: ServedShapes, folder: Path | None
) -> Verdict | None:
    """Return the verdict on the GPU's kernels, or None if there are no kernels or ``choice`` wants none.

    Verdicts are kept in ``folder``.
    """
    kernels, _ = made_for(gpu.device, model, shapes.block_size)
    if kernels is None or choice == "xla":
        return None
    if choice == "unproven":
        logger.warning("the %s kernels are taken without a proof, as --kernels unproven says", kernels.name)
        return Verdict("right")
    return judge(shapes, gpu, gpu_sources(), folder, may_run=not is_open(), again=choice == "prove")
