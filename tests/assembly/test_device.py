"""What happens to a device that is opened, and to one that was open before the engine came."""

import logging
import os
from dataclasses import replace
from inspect import unwrap
from typing import Any

import jax
import pytest

from jaxgen.assembly import device, load
from jaxgen.assembly.device import is_open, served_shapes, share_memory
from jaxgen.core.config import EngineOptions
from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.kernels.proving import proof as kernel_proof
from tests.support.engines import LLAMA
from tests.support.fake_gpu import H200


def test_a_program_that_holds_the_gpu_proves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """It takes XLA's kernels, and says why."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a proof beside an open device")

    jax.devices()
    monkeypatch.setattr(load, "find_gpu", lambda platforms: H200)
    monkeypatch.setattr(load, "device_info", lambda: H200.device)
    made = replace(REFERENCE_GPU, name="those"), ""
    monkeypatch.setattr(device, "made_for", lambda *_: made)
    monkeypatch.setattr("jaxgen.kernels.choice.made_for", lambda *_: made)
    monkeypatch.setattr(kernel_proof, "run_proof", refuse)
    for choice, name, reason in (("auto", "XLA", "this process has opened the GPU before"), ("unproven", "those", "")):
        parts = load.find_parts(kernels=choice, cache_dir=tmp_path)  # type: ignore[arg-type]
        kernels, _ = parts.load(block_size=64, progress=False)
        assert (kernels.name, reason in kernels.reason) == (name, True)


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_the_share_of_memory(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """JAX refuses to start where both variables are set."""
    variables = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(device, "is_open", lambda: True)
    share_memory(0.8)
    assert not environment
    monkeypatch.setattr(device, "is_open", lambda: False)
    share_memory(0.8)
    assert environment == {variables[0]: "0.8"}
    environment.clear()
    environment[name] = "0.5"
    share_memory(0.8)
    assert environment == {name: "0.5"}


def test_is_open() -> None:
    jax.devices()
    assert is_open()


class Accelerator:
    platform, device_kind = "gpu", "NVIDIA H200"

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 9 * 2**30, "bytes_in_use": 2 * 2**30}


def test_an_open_device_is_planned_with_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")
    accelerator: Any = Accelerator()
    free_memory = unwrap(device.free_memory)  # without the check of its arguments: this is no device of JAX
    assert free_memory(accelerator, was_open=False) == 7 * 2**30
    assert not caplog.records
    assert free_memory(accelerator, was_open=True) == 7 * 2**30
    assert "7.00 GiB" in caplog.text
    assert free_memory(jax.devices("cpu")[0], was_open=True) is None


def test_what_will_be_served() -> None:
    def widths(options: EngineOptions, budgets: list[int] | None = None) -> tuple[tuple[int, ...], int]:
        shapes = served_shapes(LLAMA, options, 256, budgets, None)
        return shapes.token_budgets, shapes.max_num_seqs

    assert widths(EngineOptions()) == ((256,), 256)
    assert widths(EngineOptions(token_budget=1024)) == ((1024, 256), 256)
    assert widths(EngineOptions(token_budget=1024, single_shape=True)) == ((1024,), 256)
    assert widths(EngineOptions(max_num_seqs=64)) == ((256, 64), 64)
    assert widths(EngineOptions(), [16, 256, 64]) == ((256, 16), 256)
