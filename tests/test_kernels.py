"""Which kernels a device gets, and that the log says so."""

import logging

import pytest

from jaxgen import kernels
from jaxgen.device_info import DeviceInfo
from jaxgen.kernels import REFERENCE, choose, native_dtypes
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.write_kv import write_kv_ref
from tests.native import directory, native

CPU = DeviceInfo("cpu", "a processor", 2, ("avx2",))
AMX = DeviceInfo("cpu", "another", 2, ("amx_bf16", "amx_tile"))
GPU = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))


def test_native_ones_on_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    native()
    caplog.set_level(logging.INFO, "jaxgen")
    chosen = choose(CPU, "bfloat16", directory())
    assert chosen == choose(AMX, "float32", directory()) == kernels.native(native())
    assert chosen.packed is not None
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 2


def test_products_stay_with_matrix_units(caplog: pytest.LogCaptureFixture) -> None:
    native()
    caplog.set_level(logging.INFO, "jaxgen")
    chosen = choose(AMX, "bfloat16", directory())
    assert chosen.packed is None
    assert chosen.write_kv != write_kv_ref
    assert "amx_bf16" in caplog.text


@pytest.mark.parametrize(("device", "dtype"), [(GPU, "bfloat16"), (CPU, "float16")])
def test_where_there_are_none(device: DeviceInfo, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")
    assert choose(device, dtype, directory()) == REFERENCE
    assert dtype in caplog.text


def test_without_a_compiler_a_warning_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise UnavailableError("no compiler here")

    monkeypatch.setattr(kernels, "load", refuse)
    monkeypatch.setattr(Recipe, "find", refuse)
    assert choose(CPU, "float32", directory()) == REFERENCE
    assert native_dtypes(CPU) == ()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no compiler here" in caplog.text
