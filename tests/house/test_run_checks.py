"""What the test run checks beside its tests: shapes in every module that handles arrays, and dtypes."""

import jax
import jax.numpy as jnp
import pytest

from tests.support.array_modules import array_modules
from tests.support.paths import ROOT


def test_every_module_with_shapes_is_checked() -> None:
    found = array_modules()
    shaped = [path for path in (ROOT / "jaxgen").rglob("*.py") if "jaxtyping" in path.read_text(encoding="utf-8")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in shaped}
    assert len(names) > 20
    assert names <= set(found)
    assert {"jaxgen.runner.finite", "jaxgen.tools.prove_kernels"} <= names


def test_modules_that_handle_arrays_of_others_are_checked_and_host_packages_are_not() -> None:
    found = array_modules()
    assert {"jaxgen.engine.engine", "jaxgen.runner.interface", "jaxgen.layerwise.calibration"} <= set(found)
    assert not [name for name in found if name.startswith(("jaxgen.core", "jaxgen.scheduling", "jaxgen.cache"))]
    assert "jaxgen" not in found


def test_no_dtype_is_widened_unasked() -> None:
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.ones(2, jnp.bfloat16) + jnp.ones(2, jnp.float32)
