"""Compare a GPU's kernels with float64, in the shapes of served steps.

Runs in a child process (jaxgen.kernels.proving.proof), because a faulty kernel may crash or hang.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Thread

import jax
import jax.numpy as jnp

from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import made_for
from jaxgen.kernels.gpu_proof import prove_block_copies, prove_expert_products
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.verdict import ServedShapes, Verdict
from jaxgen.runner.model_runner import device_info
from jaxgen.tools.proof_step import check_step, model_of


def main(result: str) -> None:
    """Run the job in the first line of stdin and write the verdict to the file ``result``. Exits when stdin closes."""
    job = json.loads(sys.stdin.readline())
    Thread(target=_end_with_parent, daemon=True).start()
    job["device"]["compute_capability"] = tuple(job["device"]["compute_capability"])
    shapes, device = ServedShapes.read(job["shapes"]), DeviceInfo(**job["device"])
    for verdict in prove(shapes, device):
        part = Path(result).with_suffix(".part")
        part.write_text(json.dumps(asdict(verdict)), encoding="utf-8")
        part.replace(result)
    os._exit(0)  # at once: closing a device after a fault may abort, and the thread holds stdin


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


def prove(shapes: ServedShapes, expected: DeviceInfo) -> Iterator[Verdict]:
    """Yield the verdict on the kernels made for this process's device, which should be the ``expected`` one.

    With experts the first says that their product is not proven, in case that its proof ends the process.
    """
    device = _opened(expected)
    if isinstance(device, Verdict):
        yield device
        return
    verdict = _judged(partial(check_served, shapes, device))
    if not verdict.is_right or shapes.experts is None:
        yield verdict
        return
    yield replace(verdict, experts="their proof did not end")
    of_experts = _judged(partial(check_experts, shapes, device))
    yield replace(verdict, experts=of_experts.reason) if of_experts.is_final else of_experts


def _opened(expected: DeviceInfo) -> DeviceInfo | Verdict:
    """Return this process's device, or why it proves nothing."""
    if not __debug__:
        return Verdict("unavailable", "Python was told to leave out assertions (-O), which prove them")
    try:
        device = device_info()
        jax.block_until_ready(jnp.zeros(1) + 1)
    except Exception as error:
        return Verdict("unavailable", f"another process could not open the GPU to prove them: {_line(error)}")
    if not device.computes_as(expected):
        return Verdict("unavailable", f"another process opened {device.title} to prove them, not {expected.title}")
    return device


def _judged(check: Callable[[], None]) -> Verdict:
    """Return the verdict of a check that raises what is wrong."""
    try:
        check()
    except AssertionError as error:
        return Verdict("wrong", f"they are wrong on this device: {_line(error)}")
    except (MemoryError, OSError, ImportError) as error:
        return Verdict("unavailable", f"this machine could not prove them: {_line(error)}")
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return Verdict("unavailable", f"there was no room on the GPU to prove them: {_line(error)}")
        return Verdict("wrong", f"they failed on this device: {_line(error)}")
    return Verdict("right")


def check_served(shapes: ServedShapes, device: DeviceInfo) -> None:
    """Raise AssertionError, or the error of a compiler or device, if kernels of a device are not correct.

    The product of experts is not asked.
    """
    alone = [replace(shapes, windows=(window,)) for window in shapes.windows]
    model = model_of(alone[0])
    kernels = _made(shapes, device)
    for of_window in alone:
        for budget in shapes.token_budgets:
            check_step(kernels, model_of(of_window), of_window, budget)
    prove_block_copies(kernels, model, shapes.block_size)


def check_experts(shapes: ServedShapes, device: DeviceInfo) -> None:
    """Raise AssertionError, or the error of a compiler or device, if the product of experts is not correct."""
    assert shapes.experts is not None
    kernels = _made(shapes, device)
    for budget in shapes.token_budgets:
        prove_expert_products(kernels, shapes.experts, budget, shapes.dtype)


def _made(shapes: ServedShapes, device: DeviceInfo) -> Kernels:
    kernels, reason = made_for(device, model_of(replace(shapes, windows=shapes.windows[:1])), shapes.block_size)
    assert kernels is not None, reason
    return kernels


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
