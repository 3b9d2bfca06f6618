"""Shape and type checks on every annotated function of ours that handles arrays, in the whole test run; a cache
directory of the run's own."""

import os
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# An interpreted kernel's warpgroups wait for each other, each on a thread of XLA's, of which there is one per core.
os.environ.setdefault("PJRT_NPROC", str(max(8, os.cpu_count() or 1)))

import pytest
from jaxtyping import install_import_hook

import tests.support.typechecker  # noqa: F401  (the hook finds it as an attribute of ``tests``)

collect_ignore = ["aot", "clients"]
"""They need environments of their own: scripts/ci/check_aot.sh, scripts/ci/check_clients.sh."""

# Files that never touch an array are left out: the hook would only slow down the scheduler's state machine.
WITH_ARRAYS = """arrays engine.engine engine.events engine.narrow engine.pace_probe engine.runners kernels.choice
    layerwise.calibration layerwise.layer_pool layerwise.layer_stream layerwise.layer_weights layerwise.links
    layerwise.model_runner layerwise.programs layerwise.start models offload.codec offload.link offload.mover
    offload.projection runner.interface runner.model_runner runner.packer runner.programs runner.row_state
    runner.step sampling.exact_sum sampling.penalties sampling.sampler tools.tune"""
install_import_hook(
    ["pallas_kernels", *(f"jaxgen.{name}" for name in WITH_ARRAYS.split())], "tests.support.typechecker.check"
)

# What these helpers assert is shown with its values, as in a test.
pytest.register_assert_rewrite(
    *(f"tests.support.scheduler_{name}" for name in ("book", "caller", "invariants", "oracle", "world"))
)


@pytest.fixture(scope="session", autouse=True)
def _cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a test starts, in this process or another, writes into the user's cache."""
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXGEN_CACHE_DIR", str(directory))
        patch.setattr("jaxgen.core.cache_dirs.default_cache_dir", lambda: directory)
        yield
