"""The model without ``--model``: the embedded one, or a tiny one."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.default_model import default_model
from tests.support.goldens import copy_golden


def test_the_default_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = default_model()
    assert load_params(directory, load_model_config(directory), progress=False)
    assert default_model() == directory


def test_without_a_demo_the_default_is_tiny_and_goes_away_with_the_process(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from jaxgen.weights import load\n"
        "from jaxgen.weights.packaged import default_model\n"
        "from jaxgen.weights.huggingface.chat_template import read_chat_format\n"
        f"default_model.DEMO = Path({str(tmp_path)!r})\n"
        "directory = default_model.default_model()\n"
        "assert load.load_params(directory, load.load_model_config(directory), progress=False)\n"
        "assert read_chat_format(directory), 'it takes conversations'\n"
        "print(directory)"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    directory = Path(result.stdout.strip())
    assert directory.name.startswith("jaxgen-tiny-")
    assert not directory.exists()


def test_a_demo_in_the_package_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxgen.weights.packaged.default_model.DEMO", copy_golden("opt_pre", tmp_path / "demo"))
    assert default_model.__wrapped__() == tmp_path / "demo"
