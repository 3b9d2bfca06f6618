"""What happens to a device that is opened, and to one that was open before the engine came."""

import logging
import os
from inspect import unwrap
from typing import Any

import jax
import pytest

from jaxgen.assembly import device
from jaxgen.assembly.device import is_open, share_memory


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
