"""Which product the experts of a model get, and why XLA's where they have no other."""

import logging
from dataclasses import replace

import pytest

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.moe_config import MoEConfig
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels import choice
from jaxgen.kernels.choice import REFERENCE_GPU, choose
from jaxgen.kernels.expert_support import experts_trouble
from jaxgen.kernels.kernels import FIELDS
from jaxgen.kernels.native_support import native_parts
from jaxgen.kernels.proving.verdict import ExpertShapes, Finding, Verdict
from pallas_kernels.cpu.parts import ELEMENTS
from pallas_kernels.plain_codes import plain_expert_product
from tests.support.choice_cases import ADA, B200, EXPERTS, HOPPER, with_nets
from tests.support.engines import LLAMA
from tests.support.native import directory

RIGHT = Verdict(otherwise=Finding("right"))
INT8 = WeightFormat(8, None)
DOWN = "layers.mlp.experts.down.weight"


@pytest.fixture(autouse=True)
def _all_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")


def test_experts_on_hopper_have_a_kernel_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    assert choose(HOPPER, EXPERTS, 64, directory(), RIGHT) == choice.hopper(132)
    assert choice.hopper(132).expert_product != REFERENCE_GPU.expert_product
    assert "because" not in caplog.text


@pytest.mark.parametrize(
    "form",
    [WeightFormat(8, None), WeightFormat(4, 32), WeightFormat(8, None, floats=True), WeightFormat(4, 32, floats=True)],
)
def test_experts_of_few_bits_on_hopper_have_it_too(form: WeightFormat) -> None:
    model = replace(EXPERTS, weight_formats=((DOWN, form),))
    assert choose(HOPPER, model, 64, directory(), RIGHT) == choice.hopper(132)
    kernels = choice.hopper(132)
    product = kernels.floats if form.floats else kernels.quantized
    assert product is not None
    assert product.expert_product != plain_expert_product


@pytest.mark.parametrize(
    ("device", "model", "reason"),
    [
        (HOPPER, replace(EXPERTS, hidden_size=136), "136 inputs and 128 outputs are not multiples of 64 and 64"),
        (HOPPER, replace(EXPERTS, moe=MoEConfig(experts=8, per_token=2, inner=72)), "144 outputs"),
        (HOPPER, replace(EXPERTS, weight_formats=((DOWN, WeightFormat(4, 32, zeros=True)),)), "zero points"),
        (HOPPER, replace(EXPERTS, weight_formats=((DOWN, WeightFormat(8, 48)),)), "groups of 48 inputs"),
        (ADA, EXPERTS, "the others are for Hopper"),
        (B200, EXPERTS, "the others are for Hopper"),
    ],
)
def test_where_experts_have_xlas_loop(
    device: DeviceInfo, model: DecoderConfig, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = choose(device, model, 64, directory(), RIGHT)
    operation = "codes" if any(model.weight_formats) else "experts"
    assert all(getattr(found, field) is getattr(REFERENCE_GPU, field) for field in FIELDS[operation])
    assert found.write_kv is not REFERENCE_GPU.write_kv
    assert reason in found.choices[operation].reason
    assert found.reason in caplog.text


def test_a_model_has_the_part_for_experts_whose_weights_are_numbers() -> None:
    up = "layers.mlp.experts.gate_up.weight"
    plain, half, whole = (
        native_parts(replace(EXPERTS, weight_formats=formats))
        for formats in ((), ((DOWN, INT8),), ((DOWN, INT8), (up, INT8)))
    )
    assert plain == {ELEMENTS, "bfloat16", "bfloat16-experts"}
    assert half == plain | {"8-bits"}
    assert whole == {ELEMENTS, "bfloat16", "8-bits"}


def test_shapes_of_experts() -> None:
    shapes = ExpertShapes.of(EXPERTS)
    assert shapes == ExpertShapes(8, 2, 128, 64)
    assert shapes.products == ((128, 128), (64, 128))
    few_bits = replace(EXPERTS, weight_formats=((DOWN, WeightFormat(4, 32)),))
    assert ExpertShapes.of(few_bits) == replace(shapes, formats=(None, WeightFormat(4, 32)))
    assert ExpertShapes.of(LLAMA) is None


def test_experts_of_several_stacks_have_the_formats_of_all() -> None:
    stacks = replace(with_nets(32), dtype=EXPERTS.dtype, hidden_size=EXPERTS.hidden_size, moe=EXPERTS.moe)
    nets, attention = ((f"layers.{kind}.mlp.experts.down.weight", INT8) for kind in ("delta", "attention"))
    both, one = (replace(stacks, weight_formats=formats) for formats in ((nets, attention), (nets,)))
    shapes = ExpertShapes.of(both)
    assert shapes is not None
    assert shapes.formats == (None, INT8)
    mixed = ExpertShapes.of(one)
    assert mixed == replace(shapes, formats=(None, None))
    reason = "experts' layers have different formats"
    assert experts_trouble(one, made=True) == {"experts": reason, "codes": reason}
    assert "bfloat16-experts" in native_parts(both)
    dense = replace(stacks, weight_formats=(attention,), dense_layers=(0,))
    assert ExpertShapes.of(dense) == shapes
    whole = [(path.replace("down", "gate_up"), form) for path, form in (nets, attention)]
    assert "bfloat16-experts" not in native_parts(replace(both, weight_formats=(nets, attention, *whole)))
