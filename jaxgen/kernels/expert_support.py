"""Say whether the Pallas product of experts takes a model's weights, without importing jax."""

from collections.abc import Callable
from typing import Any

from jaxgen.core.config import KernelChoice, ModelConfig
from jaxgen.core.mixed_weight import MixedFormat
from jaxgen.core.quantization import PLAIN_BITS, WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.proving.verdict import ExpertShapes
from pallas_kernels.gpu.expert_support import supports, supports_codes

_HOPPER = 9
"""Major number of the compute capability for which there is such a product."""


def expert_trouble(
    shapes: ExpertShapes, model: ModelConfig, placed: Callable[[WeightFormat], WeightFormat | None]
) -> str | None:
    """Return why the product does not take the experts of a model, or None if it does.

    ``placed``: the format of a weight that programs read, as ``Kernels.placed`` says.
    """
    if any(isinstance(form, MixedFormat) for path, form in model.weight_formats if ".experts." in path):
        return "their layers have different formats"
    for (inputs, outputs), form in zip(shapes.products, shapes.formats, strict=True):
        sizes: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "dtype": model.dtype}
        placed_form = None if form is None else placed(form)
        if placed_form is None:
            reason = supports(**sizes)
        else:
            codes: dict[str, Any] = {"bits": placed_form.bits, "floats": placed_form.floats, "group": placed_form.group}
            reason = supports_codes(
                **sizes, **codes, offsets=placed_form.zeros or placed_form.minimums or placed_form.blocks
            )
        if reason is not None:
            return reason
    return None


def reads_experts_codes(device: DeviceInfo, model: ModelConfig, kernels: KernelChoice) -> bool:
    """Return whether a step will multiply experts' codes in registers, if its kernels are proven."""
    shapes, capability = ExpertShapes.of(model), device.compute_capability
    if shapes is None or capability is None or capability[0] != _HOPPER:
        return False
    if kernels == "xla" or model.kv_dtype != "auto":
        return False
    return expert_trouble(shapes, model, lambda form: form.placed(integers=PLAIN_BITS, floats=True)) is None
