"""Inject faults, to test the outcome of the other rows. GPU_CHECK_FAULTS is JSON: faults by name of row."""

import json
import os
import signal
import time

import jax

PREPARE, RUN = "prepare", "run"
"""Where a row is: it compiles in the first."""
_FAULTS = json.loads(os.environ.get("GPU_CHECK_FAULTS", "{}"))


def inject(row: str, stage: str) -> None:
    """Cause the fault that is set for the row, if it is one of this stage."""
    fault = _FAULTS.get(row)
    if (fault == "slow to compile") != (stage == PREPARE):
        return
    if fault in ("hang", "slow to compile"):
        time.sleep(3600)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "abort":
        os.abort()
    elif fault == "device":
        raise jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access (on purpose)")
    elif fault == "raise":
        raise ValueError("on purpose")
