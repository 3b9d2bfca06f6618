"""Say which native kernels a device will have, before they are compiled and without importing jax."""

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import CONV_STATE, DELTA_INPUTS, DELTA_STATES
from jaxgen.core.mixed_weight import AnyFormat
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import NATIVE_BITS
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.proving.verdict import ExpertShapes, expert_formats
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.parts import (
    CONVOLUTION,
    DELTA_MULTIPLE,
    DTYPES,
    ELEMENTS,
    GATED_DELTA,
    part_of_codes,
    part_of_experts,
)

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
    placed = [_placed(form) for _, form in model.weight_formats]
    parts = {ELEMENTS, model.dtype}
    parts |= {part_of_codes(single.bits) for form in placed if form is not None for single in form.forms}
    of_experts = map(_placed, frozenset[AnyFormat | None]().union(*expert_formats(model)))
    of_heads = isinstance(model, DecoderConfig) and model.latent is not None
    if of_heads or (ExpertShapes.of(model) is not None and None in of_experts):
        parts.add(part_of_experts(model.dtype))
    states = {state.name for state in model.states}
    if states & {CONV_STATE, DELTA_INPUTS}:
        parts.add(CONVOLUTION)
    if states.issuperset(DELTA_STATES) and delta_trouble(model) is None:
        parts.add(GATED_DELTA)
    return frozenset(parts)


def _placed(form: AnyFormat | None) -> AnyFormat | None:
    return None if form is None else form.placed(integers=NATIVE_BITS, floats=False)


def delta_trouble(model: ModelConfig) -> str | None:
    """Return why gated delta nets of these sizes have no native kernel, or None."""
    shapes = {state.name: state.shape for state in model.states}
    _, _, changes, _ = (shapes.get(name, (0, 0, 0)) for name in DELTA_STATES)
    if any(size % DELTA_MULTIPLE for size in changes[1:]):
        return f"heads of {changes[2]} values are not supported, only multiples of {DELTA_MULTIPLE}"
    return None


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
        and not any(_placed(form) for _, form in model.weight_formats)
    )
