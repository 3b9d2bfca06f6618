"""Which quantizations a device is asked for, and what a step on it makes of codes."""

from dataclasses import replace

import pytest

from jaxgen.assembly.find_model import find_model
from jaxgen.assembly.model_sizes import dequantised_bytes
from jaxgen.core.errors import ConfigError
from jaxgen.hardware.device_info import DeviceInfo, this_cpu
from scripts.loads.large import GPT_OSS_20B
from tests.support.goldens import GOLDENS

H200, A100 = (
    DeviceInfo("gpu", f"NVIDIA {name}", 108, compute_capability=of) for name, of in (("H200", (9, 0)), ("A100", (8, 0)))
)
UNKNOWN = DeviceInfo("gpu", "a device with 80 GiB", 1)


def test_activations_in_fp8_are_for_gpus_that_multiply_fp8() -> None:
    model = str(GOLDENS / "llama")
    for device in (H200, UNKNOWN):
        assert find_model(model, "auto", "auto", device, quantization="fp8_dynamic")[1].fp8_inputs
    for device in (this_cpu(), A100):
        with pytest.raises(ConfigError) as caught:
            find_model(model, "auto", "auto", device, quantization="fp8_dynamic")
        assert str(caught.value) == (
            "--quantization fp8_dynamic needs a GPU whose products read FP8, of compute capability 8.9 or more, and "
            f"{device.kind} is not one: use fp8, which leaves activations as they are, or int8"
        )


def test_hopper_makes_no_matrix_of_experts_in_fp4() -> None:
    """Of MXFP4 the others write a byte for each number of an expert's matrix, before they multiply."""
    matrix = 2 * 2880 * 2880
    assert dequantised_bytes(GPT_OSS_20B, H200, "auto") == 0
    others = (GPT_OSS_20B, A100, "auto"), (GPT_OSS_20B, H200, "xla"), (GPT_OSS_20B, UNKNOWN, "auto")
    assert [dequantised_bytes(*one) for one in others] == [matrix] * 3  # type: ignore[arg-type]
    assert dequantised_bytes(replace(GPT_OSS_20B, dtype="float16"), H200, "auto") == matrix
    assert dequantised_bytes(replace(GPT_OSS_20B, kv_dtype="int8"), H200, "auto") == 0
