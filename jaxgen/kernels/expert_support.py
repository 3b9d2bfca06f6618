"""Say whether the Pallas product of experts takes a model's weights, without importing jax."""

from jaxgen.core.mixed_weight import MixedFormat
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.operations import CODES, EXPERTS
from jaxgen.kernels.proving.verdict import ExpertShapes, expert_formats
from pallas_kernels.gpu.expert_support import supports


def experts_trouble(model: ModelConfig, *, made: bool) -> dict[str, str]:
    """Return why the product does not take the experts of a model, by operation: with numbers, and with any codes.

    ``made``: whether there is such a product.
    """
    shapes = ExpertShapes.of(model)
    if shapes is None:
        return {}
    if any(len(forms) > 1 or any(isinstance(form, MixedFormat) for form in forms) for forms in expert_formats(model)):
        return dict.fromkeys((EXPERTS, CODES), "experts' layers have different formats")
    for (inputs, outputs), form in zip(shapes.products, shapes.formats, strict=True):
        reason = supports(inputs=inputs, outputs=outputs, dtype=model.dtype) if made else "the others are for Hopper"
        if form is None and reason is not None:
            return {EXPERTS: reason}
    return {}
