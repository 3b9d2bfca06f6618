"""Compare a GPU's kernels with float64, in the shapes of served steps.

Runs in a child process (jaxgen.kernels.proving.proof), because a faulty kernel may crash or hang.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Thread

import jax
import jax.numpy as jnp

from jaxgen.core import operations
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import maker_of
from jaxgen.kernels.gpu_proof import prove_block_copies, prove_expert_products, prove_gated_delta
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.verdict import Finding, Report, ServedShapes
from jaxgen.runner.model_runner import device_info
from jaxgen.tools.proof_codes import check_coded_products
from jaxgen.tools.proof_layers import TooSlowError, check_norms, check_products, check_rotation
from jaxgen.tools.proof_step import check_steps, model_of


def main(result: str) -> None:
    """Run the job in the first line of stdin and write reports to the file ``result``. Exits when stdin closes."""
    job = json.loads(sys.stdin.readline())
    Thread(target=_end_with_parent, daemon=True).start()
    job["device"]["compute_capability"] = tuple(job["device"]["compute_capability"])
    shapes, device = ServedShapes.read(job["shapes"]), DeviceInfo(**job["device"])
    for report in prove(shapes, device, job["operations"]):
        part = Path(result).with_suffix(".part")
        part.write_text(json.dumps(asdict(report)), encoding="utf-8")
        part.replace(result)
    os._exit(0)  # at once: closing a device after a fault may abort, and the thread holds stdin


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


def prove(shapes: ServedShapes, expected: DeviceInfo, names: Iterable[str]) -> Iterator[Report]:
    """Yield reports on the kernels made for this process's device, which should be the ``expected`` one.

    There is a report before the kernels of each operation are proven, in case that their proof ends the process.
    """
    device = _opened(expected)
    if isinstance(device, Finding):
        yield Report({}, otherwise=device)
        return
    findings: dict[str, Finding] = {}
    for name in names:
        yield Report(dict(findings), proving=name)
        findings[name] = _judged(partial(CHECKS[name], shapes, kernels_of(device)))
    yield Report(findings)


def _opened(expected: DeviceInfo) -> DeviceInfo | Finding:
    """Return this process's device, or why it proves nothing."""
    if not __debug__:
        return Finding("unavailable", "Python was told to leave out assertions (-O), which prove them")
    try:
        device = device_info()
        jax.block_until_ready(jnp.zeros(1) + 1)
    except Exception as error:
        return Finding("unavailable", f"another process could not open the GPU to prove them: {_line(error)}")
    if not device.computes_as(expected):
        return Finding("unavailable", f"another process opened {device.title} to prove them, not {expected.title}")
    return device


def _judged(check: Callable[[], str | None]) -> Finding:
    """Return the finding of a check that raises what is wrong."""
    try:
        measured = check()
    except TooSlowError as error:
        return Finding("slow", str(error))
    except AssertionError as error:
        return Finding("wrong", f"they are wrong on this device: {_line(error)}")
    except (MemoryError, OSError, ImportError) as error:
        return Finding("unavailable", f"this machine could not prove them: {_line(error)}")
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return Finding("unavailable", f"there was no room on the GPU to prove them: {_line(error)}")
        return Finding("wrong", f"they failed on this device: {_line(error)}")
    return Finding("right", measured=measured or "")


def check_attention(shapes: ServedShapes, kernels: Kernels) -> None:
    """Raise AssertionError, or the error of a compiler or device, if attention or the cache's writes are wrong."""
    for window in shapes.windows:
        of_window = replace(shapes, windows=(window,))
        check_steps(kernels, model_of(of_window), of_window)


def check_copies(shapes: ServedShapes, kernels: Kernels) -> None:
    """Raise AssertionError, or the error of a compiler or device, if copies of blocks are wrong."""
    prove_block_copies(kernels, model_of(shapes), shapes.block_size)


def check_experts(shapes: ServedShapes, kernels: Kernels, *, coded: bool) -> None:
    """Raise AssertionError, or the error of a compiler or device, if products of experts are wrong.

    ``coded``: whether these are the products with codes, or with numbers.
    """
    assert shapes.experts is not None
    for budget in shapes.token_budgets:
        prove_expert_products(kernels, shapes.experts, budget, shapes.dtype, coded=coded)


def check_codes(shapes: ServedShapes, kernels: Kernels) -> str:
    """Return the times of products with codes in words. Raises as ``check_experts``, and TooSlowError."""
    if shapes.experts is not None:
        check_experts(shapes, kernels, coded=True)
    return check_coded_products(shapes, kernels)


def check_delta_nets(shapes: ServedShapes, kernels: Kernels) -> None:
    """Raise AssertionError, or the error of a compiler or device, if gated delta nets are wrong."""
    nets = shapes.delta
    assert nets is not None
    sizes = {"key_heads": nets.key_heads, "heads": nets.heads, "key_dim": nets.key_dim, "value_dim": nets.value_dim}
    prove_gated_delta(kernels.gated_delta, **sizes, span=nets.span, dtype=shapes.dtype)


CHECKS: Mapping[str, Callable[[ServedShapes, Kernels], str | None]] = {
    operations.ATTENTION: check_attention,
    operations.COPIES: check_copies,
    operations.PRODUCTS: check_products,
    operations.NORMS: check_norms,
    operations.ROTATION: check_rotation,
    operations.EXPERTS: partial(check_experts, coded=False),
    operations.CODES: check_codes,
    operations.DELTA_NETS: check_delta_nets,
}
"""The check of each operation's kernels, which may return their times in words."""


def kernels_of(device: DeviceInfo) -> Kernels:
    """Return all kernels that are made for a device."""
    make = maker_of(device)
    assert make is not None, f"there are none for {device.kind}"
    return make(device.num_cores)


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
