"""Say what a step on a GPU computes for rows of padding too, in whatever kernels. Host only, no jax."""

from collections.abc import Iterator

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.operations import NORMS, OF_EVERY_TOKEN, QUANTIZED, ROTATION
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.code_support import code_trouble, is_partly_xlas
from jaxgen.kernels.proving.layer_shapes import ProductShape, coded_products_of, norms_of, products_of
from jaxgen.kernels.rotation_support import cache_code_refusal, rotation_refusal
from pallas_kernels.gpu.dense_support import supports as dense_supports
from pallas_kernels.gpu.norm_support import supports as norm_supports

HOPPER_MAJOR = 9
"""Major number of the compute capability whose kernels skip padding."""


def padding_at_best(device: DeviceInfo, model: ModelConfig) -> str:
    """Return what a step on a GPU computes for padding if all kernels made for it are right; empty: nothing."""
    if device.compute_capability is None or device.compute_capability[0] != HOPPER_MAJOR:
        return ", ".join(OF_EVERY_TOKEN)
    norms = [NORMS] if any(norm_supports(width=one.width) for one in norms_of(model)) else []
    rotation = [ROTATION] if rotation_refusal(model) or cache_code_refusal(model) else []
    return ", ".join([*norms, *rotation, *filter(None, [computed_for_padding(model)])])


def computed_for_padding(model: ModelConfig) -> str:
    """Return what XLA computes in a model's layers for padding, though all of its kernels skip it; empty: nothing."""
    return ", ".join(_beside_kernels(model) if isinstance(model, DecoderConfig) else ("all of its layers",))


def _beside_kernels(model: DecoderConfig) -> Iterator[str]:
    if is_partly_xlas(model):
        yield QUANTIZED
    if any(dense_supports(inputs=one.inputs, outputs=one.outputs, dtype=model.dtype) for one in products_of(model)):
        yield "products of some weights"
    if model.moe is not None:
        yield "the choice of experts"
    elif not activates_in_products(model):
        yield "activations"
    if model.states:
        yield "layers with a state"
    if model.attention.qkv_bias or model.attention.out_bias or model.mlp.up_bias or model.mlp.down_bias:
        yield "biases"
    if model.placement not in ("pre", "parallel", "parallel_two") or model.residual_scale != 1.0:
        yield "sums"


def activates_in_products(model: ModelConfig) -> bool:
    """Return whether the dense product computes all of a model's activations."""
    if isinstance(model, DecoderConfig) and model.moe is not None:
        return False
    gated = [one for one in (*products_of(model), *coded_products_of(model)) if one.activation is not None]
    return bool(gated) and not any(_gates_apart(one, model) for one in gated)


def _gates_apart(one: ProductShape, model: ModelConfig) -> str | None:
    """Return why no product computes the activation of its results, or None."""
    if one.form is not None:
        return code_trouble(one, model.dtype, fp8_inputs=model.fp8_inputs, gated=True)
    return dense_supports(inputs=one.inputs, outputs=one.outputs, dtype=model.dtype, activation=one.activation)
