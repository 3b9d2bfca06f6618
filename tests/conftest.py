"""Shape and type checks on every annotated function of ours that handles arrays, in the whole test run."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook

import tests.typechecker  # noqa: F401  (the hook finds it as an attribute of ``tests``)

# Files that never touch an array are left out: the hook would only slow down the scheduler's state machine.
WITH_ARRAYS = """attention device engine kernels kv_cache layout limbs models narrow packed_weight penalties programs
    row_state sampling step step_batch step_events"""
install_import_hook(["pallas_kernels", *(f"jaxgen.{name}" for name in WITH_ARRAYS.split())], "tests.typechecker.check")
