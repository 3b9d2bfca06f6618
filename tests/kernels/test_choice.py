"""Which kernels a device gets, and that the log says so."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat, Part
from jaxgen.core.moe_config import MoEConfig
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels import choice
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, choose, for_windows_as_data, reference
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.native_support import native_dtypes, native_parts
from jaxgen.kernels.proving.verdict import ExpertShapes, Verdict
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.loading import load
from pallas_kernels.cpu.parts import ELEMENTS
from pallas_kernels.plain_codes import plain_expert_product
from pallas_kernels.write_kv import write_kv_ref
from tests.support.engines import LLAMA
from tests.support.native import directory, native

CPU = DeviceInfo("cpu", "a processor", 2, ("avx2",))
AMX = DeviceInfo("cpu", "another", 2, ("amx_bf16", "amx_tile"))
HOPPER = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
ADA = DeviceInfo("gpu", "NVIDIA L4", 58, compute_capability=(8, 9))
B200 = DeviceInfo("gpu", "NVIDIA B200", 148, compute_capability=(10, 0))
RTX_50 = DeviceInfo("gpu", "NVIDIA GeForce RTX 5090", 170, compute_capability=(12, 0))
TURING = DeviceInfo("gpu", "Tesla T4", 40, compute_capability=(7, 5))


def chosen(
    device: DeviceInfo, dtype: DType, head_dim: int = 64, block_size: int = 64, verdict: Verdict | None = None
) -> Kernels:
    return choose(device, replace(LLAMA, dtype=dtype, head_dim=head_dim), block_size, directory(), verdict)


def native_kernels(*parts: str) -> Kernels:
    native()
    return choice.native(load(directory(), parts=parts))


@pytest.fixture(autouse=True)
def _all_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")


def test_native_ones_on_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    native()
    caplog.clear()  # it may have been compiled just now
    found, other = chosen(CPU, "bfloat16"), chosen(AMX, "float32")
    assert found == native_kernels(ELEMENTS, "bfloat16")
    assert other == native_kernels(ELEMENTS, "float32")
    assert found.build != other.build
    assert found.packed is not None
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 2


INT8, INT4, FP4 = WeightFormat(8, None), WeightFormat(4, 32), WeightFormat(4, 32, floats=True)
FP8, Q5 = WeightFormat(8, None, floats=True), WeightFormat(5, 32, minimums=True)


@pytest.mark.parametrize(
    ("formats", "parts"),
    [
        ((), set()),
        ((INT8,), {"8-bits"}),
        ((INT4, Q5), {"fewer-bits"}),
        ((INT4, INT8), {"8-bits", "fewer-bits"}),
        ((MixedFormat.of_layers([[Part(INT4, 8)], [Part(INT8, 8)]]),), {"8-bits", "fewer-bits"}),
        ((FP8,), set()),  # it becomes numbers
        ((FP4,), {"8-bits"}),
    ],
)
def test_a_model_has_the_parts_for_its_dtype_and_its_formats(formats: Sequence[AnyFormat], parts: set[str]) -> None:
    weights = tuple((f"layers.{number}", form) for number, form in enumerate(formats))
    model = replace(LLAMA, dtype="bfloat16", weight_formats=weights)
    assert native_parts(model) == {ELEMENTS, "bfloat16"} | parts


def test_products_stay_with_matrix_units(caplog: pytest.LogCaptureFixture) -> None:
    native()
    found = chosen(AMX, "bfloat16")
    assert found.packed is None
    assert found.write_kv != write_kv_ref
    assert "amx_bf16" in caplog.text


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "block_size", "reason"),
    [
        (TURING, "float16", 64, 64, "Tesla T4"),
        (ADA, "bfloat16", 256, 64, "head_dim is 256"),
        (HOPPER, "bfloat16", 512, 64, "head_dim is 512"),
        (CPU, "float16", 64, 64, "float16"),
        (HOPPER, "float32", 64, 64, "float32"),
        (HOPPER, "bfloat16", 32, 64, "head_dim"),
        (HOPPER, "bfloat16", 64, 8, "block_size"),
    ],
)
def test_where_there_are_none(
    device: DeviceInfo, dtype: DType, head_dim: int, block_size: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert chosen(device, dtype, head_dim, block_size) == reference(device)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("device", "made"),
    [
        (HOPPER, choice.hopper(132)),
        (ADA, choice.ampere(58)),
        (B200, choice.blackwell(148)),
        (RTX_50, choice.blackwell_rtx(170)),
    ],
)
def test_those_for_a_gpu_are_taken_if_they_are_right(
    device: DeviceInfo, made: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    assert chosen(device, "bfloat16", verdict=Verdict("right")) is made
    found = chosen(device, "bfloat16", verdict=Verdict("timed out", "their proof was not done after 180 s"))
    assert found == REFERENCE_GPU
    assert found.reason == f"of the {made.name} kernels their proof was not done after 180 s"
    assert chosen(device, "bfloat16") == REFERENCE_GPU
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING, logging.WARNING]
    assert f"kernels: {made.name}\n" in caplog.text
    assert found.reason in caplog.text


def test_experts_alone_fall_back_if_only_their_product_is_wrong() -> None:
    found = choose(HOPPER, EXPERTS, 64, directory(), Verdict("right", experts="they failed on this device"))
    made = choice.hopper(132)
    assert found.ragged_paged_attention is made.ragged_paged_attention
    assert found.expert_product is choice.GPU_EXPERT_PRODUCT
    assert found.reason == "XLA's loop over tiles for experts: they failed on this device"


@pytest.mark.parametrize(
    ("device", "kv_heads", "reason"),
    [(ADA, 1, "1 kv heads of 64 are not a multiple of 128 numbers"), (RTX_50, 256, ""), (HOPPER, 320, "more than 256")],
)
def test_keys_and_values_that_no_kernel_writes(device: DeviceInfo, kv_heads: int, reason: str) -> None:
    model = replace(LLAMA, dtype="bfloat16", head_dim=64, num_heads=kv_heads, num_kv_heads=kv_heads)
    kernels, found = choice.made_for(device, model, 64)
    assert (kernels is None) == bool(reason)
    assert reason in found


def test_a_cache_of_codes_is_read_by_native_kernels_and_by_no_others() -> None:
    model = replace(LLAMA, dtype="bfloat16", head_dim=64, kv_dtype="int8")
    assert choose(CPU, model, 64, directory()) == native_kernels(ELEMENTS, "bfloat16")
    found = choose(HOPPER, model, 64, directory(), Verdict("right"))
    assert (found, found.reason) == (REFERENCE_GPU, "no others read a KV cache of int8")


DOWN = "layers.mlp.experts.down.weight"
EXPERTS = replace(
    LLAMA, dtype="bfloat16", head_dim=64, hidden_size=128, moe=MoEConfig(experts=8, per_token=2, inner=64)
)


def test_experts_on_hopper_have_a_kernel_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    assert choose(HOPPER, EXPERTS, 64, directory(), Verdict("right")) is choice.hopper(132)
    assert choice.hopper(132).expert_product != REFERENCE_GPU.expert_product
    assert "loop" not in caplog.text


@pytest.mark.parametrize(
    "form",
    [WeightFormat(8, None), WeightFormat(4, 32), WeightFormat(8, None, floats=True), WeightFormat(4, 32, floats=True)],
)
def test_experts_of_few_bits_on_hopper_have_it_too(form: WeightFormat) -> None:
    model = replace(EXPERTS, weight_formats=((DOWN, form),))
    assert choose(HOPPER, model, 64, directory(), Verdict("right")) is choice.hopper(132)
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
    found = choose(device, model, 64, directory(), Verdict("right"))
    assert found.expert_product is REFERENCE_GPU.expert_product
    assert found.write_kv is not REFERENCE_GPU.write_kv
    assert (found.quantized, found.floats) == (REFERENCE_GPU.quantized, REFERENCE_GPU.floats)
    assert "XLA's loop" in found.reason
    assert reason in found.reason
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


def test_an_old_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "compiler_trouble", lambda: "ptxas 12.9.41 is older")
    assert "ptxas 12.9.41" in chosen(HOPPER, "bfloat16", verdict=Verdict("right")).reason


def test_kernels_of_one_device_are_equal() -> None:
    assert choice.hopper(132) == choice.hopper(132) != choice.hopper(114)
    assert choice.ampere(108) == choice.ampere(108) != choice.hopper(108)


def test_without_a_compiler_a_warning_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("no compiler here")

    monkeypatch.setattr(choice, "load", refuse)
    monkeypatch.setattr(Recipe, "find", refuse)
    assert chosen(CPU, "float32") == reference(CPU)
    assert native_dtypes(CPU) == ()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no compiler here" in caplog.text


def test_kernels_for_programs_that_take_windows_as_data() -> None:
    """Those that plan for a window only where all layers have the same."""
    hopper = choice.hopper(132)
    for windows in ((), (None, None), (8, 8)):
        assert for_windows_as_data(hopper, windows) is hopper
    found = for_windows_as_data(hopper, (8, None))
    assert found.ragged_paged_attention is REFERENCE_GPU.ragged_paged_attention
    assert found.write_kv is REFERENCE_GPU.write_kv
    # Weights are in the layout that the products of the Hopper kernels read.
    assert (found.expert_product, found.quantized) == (hopper.expert_product, hopper.quantized)
    assert found.floats == hopper.floats
    assert "Hopper" in found.reason
    for kernels in (REFERENCE, REFERENCE_GPU, choice.native(native())):
        assert for_windows_as_data(kernels, (8, None)) is kernels
