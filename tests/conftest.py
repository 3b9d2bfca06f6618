"""Shape and type checks on every annotated function of ours, in the whole test run."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook

import tests.typechecker  # noqa: F401  (the hook finds it as an attribute of ``tests``)

install_import_hook(["jaxgen", "pallas_kernels"], "tests.typechecker.check")
