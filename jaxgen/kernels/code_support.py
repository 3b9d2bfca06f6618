"""Say which quantized weights of a model the Pallas products for Hopper multiply, and why not others. Host only."""

from collections.abc import Iterator

from jaxgen.core.config import KernelChoice
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.mixed_weight import MixedFormat
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import PLAIN_BITS, WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.expert_support import experts_trouble
from jaxgen.kernels.proving.layer_shapes import ProductShape, coded_products_of, named_products, parts_of
from jaxgen.kernels.proving.verdict import ExpertShapes
from pallas_kernels.gpu.code_support import CODES
from pallas_kernels.gpu.dense_support import supports as dense_supports
from pallas_kernels.gpu.expert_support import supports_codes

_HOPPER = 9
"""Major number of the compute capability for which there are such products."""


def experts_code_trouble(form: WeightFormat, inputs: int, outputs: int, dtype: str) -> str | None:
    """Return why there is no product with experts' weights [outputs, inputs] in a format, or None."""
    offsets = form.zeros or form.minimums or form.blocks
    sizes = {"inputs": inputs, "outputs": outputs}
    return supports_codes(**sizes, dtype=dtype, bits=form.bits, floats=form.floats, group=form.group, offsets=offsets)


def code_trouble(one: ProductShape, dtype: str, *, fp8_inputs: bool, gated: bool = False) -> str | None:
    """Return why there is no product with a quantized weight, or with ``gated`` none with its activation, or None.

    ``fp8_inputs``: as of the model.
    """
    form = one.form
    assert form is not None, "it is quantized"
    if fp8_inputs and form.title == "fp8":
        return "XLA multiplies FP8 with FP8"
    if form.zeros or form.minimums or form.blocks:
        return "their codes have zero points or minimums"
    group = form.group if form.num_groups(one.inputs) > 1 else None
    codes, sizes = CODES[form.bits, form.floats], {"inputs": one.inputs, "outputs": one.outputs}
    return dense_supports(**sizes, dtype=dtype, codes=codes, group=group, activation=one.activation if gated else None)


def code_troubles(model: ModelConfig) -> list[str | None]:
    """Return of each product with quantized weights why it is XLA's, or None."""
    dense = (code_trouble(one, model.dtype, fp8_inputs=model.fp8_inputs) for one in coded_products_of(model))
    return [*dense, *_of_experts(model)]


def read_in_registers(device: DeviceInfo, model: ModelConfig, kernels: KernelChoice) -> set[str]:
    """Return the paths of the weights whose codes a step will read in registers, if its kernels are proven."""
    capability = device.compute_capability
    if capability is None or capability[0] != _HOPPER or kernels == "xla" or not isinstance(model, DecoderConfig):
        return set()
    found = {
        path
        for path, shape in named_products(model)
        if not any(
            code_trouble(one, model.dtype, fp8_inputs=model.fp8_inputs)
            for one in parts_of(model, path, shape)
            if one.form is not None
        )
    }
    if not experts_trouble(model, made=True) and not any(_of_experts(model)):
        found |= {path for path, _ in model.weight_formats if ".experts." in path}
    return found


def _of_experts(model: ModelConfig) -> Iterator[str | None]:
    experts = ExpertShapes.of(model)
    if experts is None:
        return
    for (inputs, outputs), form in zip(experts.products, experts.formats, strict=True):
        placed = None if form is None else form.placed(integers=PLAIN_BITS, floats=True)
        if placed is not None:
            yield experts_code_trouble(placed, inputs, outputs, model.dtype)


def is_partly_xlas(model: DecoderConfig) -> bool:
    """Return whether XLA computes a part of the products with quantized weights, if kernels do what they can.

    It also orders inputs, and joins outputs of several formats.
    """
    forms = [form for path, _ in named_products(model) if (form := model.weight_format(path)) is not None]
    return any(code_troubles(model)) or any(
        one.ordered if isinstance(one, WeightFormat) else _has_parts(one) for one in forms
    )


def _has_parts(form: MixedFormat) -> bool:
    return any(len(kind) > 1 for kind in form.kinds) or any(one.ordered for one in form.forms)
