"""A machine that says it has an H200 and computes on its CPU.

``python -m tests.support.fake_gpu HOW SECONDS serve ...`` is jaxgen with a proof of kernels that ends as HOW says,
or after so many seconds.

The proof is the real one, in its process, until it computes with the kernels: there it hangs, or they are right.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxgen.assembly import kernels, resolve
from jaxgen.core.operations import ATTENTION
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.hardware.nvidia import Gpu
from jaxgen.kernels.choice import REFERENCE_GPU, made_for
from jaxgen.kernels.proving import proof as kernel_proof
from pallas_kernels.gpu.attention import ragged_paged_attention

H200 = Gpu(DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0)), "13000 580.65.06", 141 * 2**30)


def pretend(how: str, seconds: float) -> None:
    """Make this process one of such a machine."""
    ragged_paged_attention._HEAD_DIMS += (32,)  # type: ignore[assignment]  # that of the embedded model
    resolve.find_gpu = lambda platforms: H200  # type: ignore[attr-defined]
    resolve.device_info = lambda: H200.device  # type: ignore[attr-defined]
    kernels.made_for = _attention_alone  # type: ignore[attr-defined,assignment]
    kernel_proof.COMMAND = (sys.executable, "-m", "tests.support.fake_gpu", how)  # type: ignore[assignment]
    kernel_proof.PROOF_SECONDS = seconds


def _attention_alone(*about: Any) -> Any:
    """Return kernels for the device of which only attention is its own, so that nothing else is proven."""
    made = made_for(*about)
    return made.without(dict.fromkeys(set(made.own) - {ATTENTION}, "left out"), REFERENCE_GPU)


def prove(how: str, result: str) -> None:
    from jaxgen.tools import prove_kernels

    def hang(*_: Any, **__: Any) -> Any:
        time.sleep(600)

    prove_kernels.device_info = lambda: H200.device  # type: ignore[attr-defined]
    found = REFERENCE_GPU if how == "right" else replace(REFERENCE_GPU, write_kv=hang)
    prove_kernels.kernels_of = lambda *_: found
    prove_kernels.main(result)


def main() -> int:
    how, second, *rest = sys.argv[1:]
    if Path(second).suffix == ".json":
        prove(how, second)
        return 0
    from jaxgen.server.cli import main as jaxgen

    pretend(how, float(second))
    return jaxgen(rest)


if __name__ == "__main__":
    sys.exit(main())
