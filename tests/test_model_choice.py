"""Which quantizations a device is asked for: those that it multiplies."""

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.hardware.device_info import DeviceInfo, this_cpu
from jaxgen.model_choice import find_model
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
            f"{device.kind} is none: use fp8, which leaves activations as they are, or int8"
        )
