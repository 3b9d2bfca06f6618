"""A measurement is used for what it was made with, and for nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.sizing import tuning_store
from jaxgen.sizing.token_budget import default_budget
from jaxgen.sizing.tuning_store import choose_budget, save_record
from tests.support.damaged_files import DAMAGES
from tests.support.engines import LLAMA

CPU = DeviceInfo("cpu", "A Fast One 9", 2, ("avx2",))
BY_RULE = default_budget(CPU)


def test_a_kept_measurement_decides(tmp_path: Path) -> None:
    assert choose_budget(tmp_path, LLAMA, CPU) == BY_RULE
    path = save_record(tmp_path, LLAMA, CPU, {"token_budget": 96})
    decided = choose_budget(tmp_path, LLAMA, CPU)
    assert decided.tokens == 96
    assert str(path) in decided.reason
    save_record(tmp_path, LLAMA, CPU, {"token_budget": 32})
    assert choose_budget(tmp_path, LLAMA, CPU).tokens == 32
    assert choose_budget(None, LLAMA, CPU) == BY_RULE


@pytest.mark.parametrize(
    ("model", "device"),
    [
        (replace(LLAMA, dtype="bfloat16"), CPU),
        (replace(LLAMA, num_layers=3), CPU),
        (LLAMA, replace(CPU, num_cores=4)),
        (LLAMA, replace(CPU, kind="another")),
        (LLAMA, replace(CPU, features=("avx2", "avx512_bf16"))),
    ],
)
def test_it_does_not_decide_for_others(tmp_path: Path, model: DecoderConfig, device: DeviceInfo) -> None:
    save_record(tmp_path, LLAMA, CPU, {"token_budget": 96})
    assert choose_budget(tmp_path, model, device) == BY_RULE


def test_on_a_gpu_it_does_not_decide_for_kernels_that_treat_padding_otherwise(tmp_path: Path) -> None:
    gpu = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
    save_record(tmp_path, LLAMA, gpu, {"token_budget": 2048, "skips_padding": True})
    assert choose_budget(tmp_path, LLAMA, gpu, skips_padding=True).tokens == 2048
    assert choose_budget(tmp_path, LLAMA, gpu) == default_budget(gpu)


def test_it_does_not_decide_for_other_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_record(tmp_path, LLAMA, CPU, {"token_budget": 96})
    monkeypatch.setattr(tuning_store, "version", lambda name: "9.9")
    assert choose_budget(tmp_path, LLAMA, CPU) == BY_RULE


def test_it_does_not_decide_under_another_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_store, "_GENERATION", 1)
    save_record(tmp_path, LLAMA, CPU, {"token_budget": 96})
    monkeypatch.undo()
    assert choose_budget(tmp_path, LLAMA, CPU) == BY_RULE


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_measurement_goes(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """It is named once, and not read as another number of tokens."""
    path = save_record(tmp_path, LLAMA, CPU, {"token_budget": 96})
    path.write_bytes(damage(path.read_bytes()))
    assert choose_budget(tmp_path, LLAMA, CPU) == choose_budget(tmp_path, LLAMA, CPU) == BY_RULE
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith(f"{path} is damaged: ")
    assert "jaxgen tune" in said
    assert not path.exists()
