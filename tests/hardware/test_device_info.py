"""Which dtype a device computes a checkpoint in: nothing is ever lost, and nothing slow is chosen."""

from pathlib import Path

import pytest

from jaxgen.core.model_config import DTYPES, DType
from jaxgen.hardware.device_info import DeviceInfo, choose_dtype, this_cpu

OLD_CPU = DeviceInfo("cpu", "old", 2, ("avx2",))
UNKNOWN_CPU = DeviceInfo("cpu", "arm64", 8)
ZEN = DeviceInfo("cpu", "zen", 2, ("avx2", "avx512_bf16"))
AMX = DeviceInfo("cpu", "xeon", 2, ("amx_bf16", "amx_tile"))
TURING = DeviceInfo("gpu", "Tesla T4", 40, compute_capability=(7, 5))
AMPERE = DeviceInfo("gpu", "NVIDIA A100-SXM4-80GB", 108, compute_capability=(8, 0))
OTHER = DeviceInfo("tpu", "TPU v5", 1)
EXACT = {"float32": {"float32"}, "bfloat16": {"bfloat16", "float32"}, "float16": {"float16", "float32"}}


NATIVE = ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("device", "native", "bfloat16", "float16"),
    [
        (OLD_CPU, (), "float32", "float32"),
        (OLD_CPU, NATIVE, "bfloat16", "float32"),
        (UNKNOWN_CPU, (), "float32", "float32"),
        (ZEN, (), "bfloat16", "float32"),
        (AMX, (), "bfloat16", "float32"),
        (ZEN, NATIVE, "bfloat16", "float32"),
        (TURING, (), "float32", "float16"),
        (AMPERE, (), "bfloat16", "float16"),
        (OTHER, (), "bfloat16", "float16"),
    ],
)
def test_dtypes(device: DeviceInfo, native: tuple[str, ...], bfloat16: DType, float16: DType) -> None:
    assert choose_dtype("float32", device, native) == "float32"
    assert choose_dtype("bfloat16", device, native) == bfloat16
    assert choose_dtype("float16", device, native) == float16
    for dtype in DTYPES:
        assert choose_dtype(dtype, device, native) in EXACT[dtype]


def test_the_processor_is_read_from_its_file(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    first = "processor\t: 0\nmodel name\t: A Fast One 9\nflags\t\t: fpu sse avx2 amx_bf16 bmi1 avx512_bf16\n"
    cpuinfo.write_text(first + "\n" + first.replace(": 0", ": 1"))
    cpu = this_cpu(cpuinfo)
    assert (cpu.platform, cpu.kind) == ("cpu", "A Fast One 9")
    assert cpu.features == ("amx_bf16", "avx2", "avx512_bf16")
    assert cpu.num_cores >= 1


def test_without_the_file_no_feature_is_assumed(tmp_path: Path) -> None:
    cpu = this_cpu(tmp_path / "nothing")
    assert cpu.features == ()
    assert cpu.kind
