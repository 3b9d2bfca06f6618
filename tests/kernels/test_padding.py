"""What a step on a GPU computes for padding, by the model and by what its proof found."""

from dataclasses import replace

import pytest

from jaxgen.core.operations import OF_EVERY_TOKEN
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import hopper, proven
from jaxgen.kernels.padding import computed_for_padding, padding_at_best
from jaxgen.kernels.proving.verdict import Finding, Verdict
from tests.support.hub_configs import described

H200 = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
A100 = DeviceInfo("gpu", "NVIDIA A100", 108, compute_capability=(8, 0))
RIGHT = Finding("right")


@pytest.mark.parametrize(
    ("name", "computed"),
    [
        ("Llama-3.1-8B", ""),
        ("Qwen3-8B", ""),
        ("Qwen2.5-0.5B", "biases"),
        ("gemma-3-12b-it", "sums"),
        ("gpt-oss-20b", "the choice of experts, biases"),
        ("LFM2.5-350M", "layers with a state"),
    ],
)
def test_what_has_no_kernel_is_named(name: str, computed: str) -> None:
    assert computed_for_padding(described(name)) == computed


def test_weights_that_the_product_does_not_take() -> None:
    model = described("Llama-3.1-8B")
    assert computed_for_padding(replace(model, dtype="float32")).startswith("products of some weights")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (WeightFormat(8, None), ""),
        (WeightFormat(5, 32, "float16"), ""),
        (WeightFormat(4, 32, floats=True), ""),
        (WeightFormat(4, 128, zeros=True), "zero points or minimums"),
        (WeightFormat(4, 48), "groups of 48 inputs"),
        (WeightFormat(4, 32, ordered=True), ""),
        (WeightFormat(8, None, floats=True), "XLA multiplies FP8 with FP8"),
    ],
)
def test_codes_that_no_product_takes_are_named(form: WeightFormat, reason: str) -> None:
    """Of others a step skips padding, unless XLA orders inputs. A format leaves the other kernels as they are."""
    formats = (("layers.mlp.down.weight", form), ("layers.mlp.gate_up.weight", WeightFormat(8, None)))
    model = replace(described("Llama-3.1-8B"), weight_formats=formats, fp8_inputs=form.title == "fp8")
    named = "products with quantized weights" if reason or form.ordered else ""
    assert computed_for_padding(model) == named
    made = proven(H200, model, 64, Verdict(otherwise=RIGHT))
    assert (made.computes_padding, made.sums_alone) == (named, not named)
    assert made.choices["codes"].implementation == "Hopper"
    assert (reason in made.reason, bool(made.reason)) == (True, bool(reason))
    alone = proven(H200, replace(model, weight_formats=formats[:1]), 64, Verdict(otherwise=RIGHT))
    assert (alone.choices["codes"].implementation == "XLA") == bool(reason)
    assert alone.own[:2] == made.own[:2]


def test_the_list_of_what_xla_does_is_that_of_the_kernels() -> None:
    assert set(OF_EVERY_TOKEN) - set(hopper(132).own) == {"activations"}


def test_padding_is_skipped_only_if_every_operation_was_found_right() -> None:
    model, found = described("Llama-3.1-8B"), Verdict(otherwise=RIGHT)
    assert padding_at_best(A100, model) == ", ".join(OF_EVERY_TOKEN)
    assert padding_at_best(H200, model) == ""
    assert padding_at_best(H200, replace(model, kv_dtype="int8")) == ""
    for change in ({"kv_dtype": "int8", "num_kv_heads": 1}, {"head_dim": 96}):  # as a plan must know
        assert padding_at_best(H200, replace(model, **change)) == "rotation"
    best = proven(H200, model, 64, found)
    assert (best.skips_padding, best.wants_narrow, best.choices["activations"].implementation) == (
        True,
        False,
        "Hopper",
    )
    for refused, computed in {"products": "products, activations", "norms": "norms", "rotation": "rotation"}.items():
        verdict = Verdict({refused: Finding("wrong", "by 1")}, RIGHT)
        assert proven(H200, model, 64, verdict).computes_padding == computed
