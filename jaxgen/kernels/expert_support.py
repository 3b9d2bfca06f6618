"""Say whether the Pallas product of experts takes a model's weights, without importing jax."""

from collections.abc import Callable
from typing import Any

from jaxgen.core.config import KernelChoice, ModelConfig
from jaxgen.core.mixed_weight import MixedFormat
from jaxgen.core.operations import CODES, EXPERTS
from jaxgen.core.quantization import PLAIN_BITS, WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.proving.verdict import ExpertShapes, expert_formats
from pallas_kernels.gpu.expert_support import supports, supports_codes

_HOPPER = 9
"""Major number of the compute capability for which there is such a product."""


def experts_trouble(
    model: ModelConfig, *, made: bool, placed: Callable[[WeightFormat], WeightFormat | None]
) -> dict[str, str]:
    """Return why the product does not take the experts of a model, by operation: with numbers, and with codes.

    ``made``: whether there is such a product. ``placed``: the format of a weight that programs read, as
    ``Kernels.placed`` says.
    """
    shapes = ExpertShapes.of(model)
    if shapes is None:
        return {}
    of_products = expert_formats(model)
    if any(len(forms) > 1 or any(isinstance(form, MixedFormat) for form in forms) for forms in of_products):
        return dict.fromkeys((EXPERTS, CODES), "experts' layers have different formats")
    found: dict[str, str] = {}
    for (inputs, outputs), form in zip(shapes.products, shapes.formats, strict=True):
        placed_form = None if form is None else placed(form)
        reason = _trouble(inputs, outputs, model.dtype, placed_form) if made else "the others are for Hopper"
        if reason is not None:
            found.setdefault(EXPERTS if placed_form is None else CODES, reason)
    return found


def _trouble(inputs: int, outputs: int, dtype: str, form: WeightFormat | None) -> str | None:
    sizes: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "dtype": dtype}
    if form is None:
        return supports(**sizes)
    codes: dict[str, Any] = {"bits": form.bits, "floats": form.floats, "group": form.group}
    return supports_codes(**sizes, **codes, offsets=form.zeros or form.minimums or form.blocks)


def reads_experts_codes(device: DeviceInfo, model: ModelConfig, kernels: KernelChoice) -> bool:
    """Return whether a step will multiply experts' codes in registers, if its kernels are proven."""
    capability = device.compute_capability
    if ExpertShapes.of(model) is None or capability is None or kernels == "xla":
        return False
    made = capability[0] == _HOPPER
    return not experts_trouble(model, made=made, placed=lambda form: form.placed(integers=PLAIN_BITS, floats=True))
