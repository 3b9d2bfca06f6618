"""Say which native kernels a device will have, before they are compiled and without importing jax."""

from jaxgen.core.config import ModelConfig
from jaxgen.core.quantization import NATIVE_BITS
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.proving.verdict import EXPERT_WEIGHTS, ExpertShapes
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.parts import DTYPES, ELEMENTS, part_of_codes, part_of_experts

MATRIX_UNITS = "amx_bf16"
"""XLA multiplies bfloat16 on a CPU's matrix units, at about eight times the rate of its vector units."""


def native_dtypes(device: DeviceInfo) -> tuple[str, ...]:
    """Return the dtypes for which ``choose`` can make native kernels with the installed compiler."""
    try:
        Recipe.find()
    except UnavailableError:
        return ()
    return DTYPES if device.is_cpu else ()


def native_parts(model: ModelConfig) -> frozenset[str]:
    """Return the names of the parts of the native kernels that a model's programs call."""
    formats = {path: form.placed(integers=NATIVE_BITS, floats=False) for path, form in model.weight_formats}
    parts = {ELEMENTS, model.dtype}
    parts |= {part_of_codes(single.bits) for form in formats.values() if form is not None for single in form.forms}
    if ExpertShapes.of(model) is not None and any(formats.get(path) is None for path in EXPERT_WEIGHTS):
        parts.add(part_of_experts(model.dtype))
    return frozenset(parts)


def multiplies_codes(device: DeviceInfo, dtype: str) -> bool:
    """Return whether programs of a device multiply quantized weights; on a CPU, if the native kernels compile."""
    return not device.is_cpu or dtype in native_dtypes(device)


def skips_padding(device: DeviceInfo, model: ModelConfig) -> bool:
    """Return whether products of the kernels that ``choose`` makes for a model leave out padding, if they compile."""
    return model.dtype in native_dtypes(device) and not uses_matrix_units(device, model)


def uses_matrix_units(device: DeviceInfo, model: ModelConfig) -> bool:
    """Return whether a model's products are XLA's, since these run on a CPU's matrix units.

    Quantized weights have native kernels, and then the other kernels are native too.
    """
    return (
        model.dtype == "bfloat16"
        and MATRIX_UNITS in device.features
        and not any(form.placed(integers=NATIVE_BITS, floats=False) for _, form in model.weight_formats)
    )
