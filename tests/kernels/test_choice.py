"""Which kernels a device gets, and that the log says so."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from jaxgen.core.layer_kind import HeadShape
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat, Part
from jaxgen.core.model_config import DType
from jaxgen.core.operations import Choice
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels import choice, gpu_support
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, choose, for_windows_as_data, reference
from jaxgen.kernels.kernels import FIELDS, UNREAD_CODES, Kernels
from jaxgen.kernels.native_support import native_dtypes, native_parts
from jaxgen.kernels.proving.verdict import (
    NOTHING_PROVEN,
    Finding,
    ServedShapes,
    Verdict,
    operations_of,
)
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.loading import load
from pallas_kernels.cpu.parts import CONVOLUTION, ELEMENTS, GATED_DELTA
from pallas_kernels.gated_delta import gated_delta_ref
from pallas_kernels.write_kv import write_kv_ref
from tests.support.choice_cases import ADA, AMX, B200, CPU, EXPERTS, HOPPER, RTX_50, TURING, with_nets
from tests.support.engines import LLAMA
from tests.support.native import directory, native

RIGHT = Verdict(otherwise=Finding("right"))


def chosen(
    device: DeviceInfo, dtype: DType, head_dim: int = 64, block_size: int = 64, verdict: Verdict = NOTHING_PROVEN
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
    assert found.own == ("attention", "products", "norms", "activations", "rotation")
    assert (found.skips_padding, found.choices["copies"]) == (True, Choice("XLA"))
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


def test_gated_delta_nets_have_parts_of_their_own() -> None:
    native()
    assert native_parts(with_nets(32)) == {ELEMENTS, "float32", CONVOLUTION, GATED_DELTA}
    found = choose(CPU, with_nets(32), 64, directory())
    assert found.gated_delta != gated_delta_ref
    assert not found.reason


def test_values_that_fill_no_vectors_are_computed_by_xla() -> None:
    native()
    assert native_parts(with_nets(24)) == {ELEMENTS, "float32", CONVOLUTION}
    found = choose(CPU, with_nets(24), 64, directory())
    assert found.gated_delta == gated_delta_ref
    assert found.reason == "delta_nets: heads of 24 values are not supported, only multiples of 16"
    with_units = choose(AMX, replace(with_nets(24), dtype="bfloat16"), 64, directory())
    assert with_units.reason == f"products: XLA's use amx_bf16; {found.reason}"


def test_a_gpu_has_a_kernel_for_nets_of_its_sizes() -> None:
    small = replace(with_nets(32), dtype="bfloat16")
    found = choose(HOPPER, small, 64, directory(), RIGHT)
    assert found.gated_delta == REFERENCE_GPU.gated_delta
    assert found.choices["delta_nets"].reason == "heads of 8 keys and 32 values are not 128 of each"
    assert small.delta is not None
    taken = replace(small, delta=replace(small.delta, key_dim=128, value_dim=128))
    assert choose(HOPPER, taken, 64, directory(), RIGHT).gated_delta == choice.hopper(132).gated_delta
    assert choose(ADA, taken, 64, directory(), RIGHT).choices["delta_nets"].reason.startswith("compute capability 8")
    refused = Verdict({"delta_nets": Finding("wrong", "wrong by 0.1")}, Finding("right"))
    assert choose(HOPPER, taken, 64, directory(), refused).choices["delta_nets"] == Choice("XLA", "wrong by 0.1")
    shapes = ServedShapes.of(taken, block_size=64, token_budgets=(64,), max_num_seqs=8, max_model_len=128)
    assert ServedShapes.read(json.loads(json.dumps(asdict(shapes)))) == shapes


def test_products_stay_with_matrix_units(caplog: pytest.LogCaptureFixture) -> None:
    native()
    found = chosen(AMX, "bfloat16")
    assert found.packed is None
    assert found.write_kv != write_kv_ref
    assert found.choices["products"] == Choice("XLA", "XLA's use amx_bf16")
    assert (found.name, found.skips_padding) == ("native attention", False)
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
    found = chosen(device, dtype, head_dim, block_size, RIGHT)
    twins = reference(device)
    assert all(getattr(found, field) == getattr(twins, field) for field in FIELDS["attention"])
    assert reason in found.choices["attention"].reason
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
    assert chosen(device, "bfloat16", verdict=RIGHT) == made
    slow = Verdict(otherwise=Finding("timed out", "their proof was not done after 180 s"))
    found = chosen(device, "bfloat16", verdict=slow)
    assert found == REFERENCE_GPU
    assert found.reason.startswith(f"{', '.join(made_of(made))}: their proof was not done after 180 s")
    assert chosen(device, "bfloat16") == REFERENCE_GPU
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING, logging.WARNING]
    others = ", and XLA's for " if device is not HOPPER else "\n"
    assert f"kernels: {made.name}{others}" in caplog.text
    assert found.reason in caplog.text


def made_of(made: Kernels) -> list[str]:
    """The operations of a model without experts and codes that have such kernels."""
    return [name for name in made.own if name in operations_of(LLAMA)]


@pytest.mark.parametrize("refused", made_of(choice.hopper(132)))
def test_an_operation_whose_proof_fails_falls_back_alone(refused: str, caplog: pytest.LogCaptureFixture) -> None:
    made = choice.hopper(132)
    verdict = Verdict({refused: Finding("wrong", "wrong by 0.1")}, Finding("right"))
    found = chosen(HOPPER, "bfloat16", verdict=verdict)
    for name, fields in FIELDS.items():
        expected = REFERENCE_GPU if name == refused else made
        assert all(getattr(found, field) == getattr(expected, field) for field in fields), name
    assert (found.name, found.reason) == ("Hopper", f"{refused}: wrong by 0.1")
    assert found.choices[refused] == Choice("XLA", "wrong by 0.1")
    in_products = ["activations"] if refused != "products" else []
    assert set(found.own) == {*made_of(made), *in_products} - {refused}
    assert found.reason in caplog.text


def test_a_step_of_hopper_has_no_sums_of_xlas_unless_an_operation_is_refused() -> None:
    """Then a narrow program may have the bits of a wide one, which a start checks."""
    assert chosen(HOPPER, "bfloat16", verdict=RIGHT).sums_alone
    for refused in ("attention", "products", "norms"):
        verdict = Verdict({refused: Finding("wrong", "by 1")}, Finding("right"))
        assert not chosen(HOPPER, "bfloat16", verdict=verdict).sums_alone
    assert choose(HOPPER, EXPERTS, 64, directory(), RIGHT).sums_alone
    wrong = Verdict({"experts": Finding("wrong", "by 1")}, Finding("right"))
    assert not choose(HOPPER, EXPERTS, 64, directory(), wrong).sums_alone
    coded = replace(LLAMA, dtype="bfloat16", head_dim=64, weight_formats=(("layers.mlp.down.weight", INT8),))
    assert not choose(HOPPER, coded, 64, directory(), RIGHT).sums_alone
    wide = chosen(HOPPER, "bfloat16", verdict=RIGHT)
    assert (wide.computes_padding, wide.wants_narrow) == ("products of some weights", True)


def test_experts_alone_fall_back_if_only_their_product_is_wrong() -> None:
    failed = Finding("wrong", "they failed on this device")
    found = choose(HOPPER, EXPERTS, 64, directory(), Verdict({"experts": failed}, Finding("right")))
    made = choice.hopper(132)
    assert found.ragged_paged_attention is made.ragged_paged_attention
    assert found.expert_product is choice.GPU_EXPERT_PRODUCT
    assert found.reason == "experts: they failed on this device"


def test_times_of_a_proof_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    timed = Finding("right", measured="0.98 of XLA's time")
    chosen(HOPPER, "bfloat16", verdict=Verdict({"copies": timed}, Finding("right")))
    assert "kernels: copies take 0.98 of XLA's time" in caplog.text


@pytest.mark.parametrize(
    ("device", "kv_heads", "reason"),
    [(ADA, 1, "1 kv heads of 64 are not a multiple of 128 numbers"), (RTX_50, 256, ""), (HOPPER, 320, "more than 256")],
)
def test_keys_and_values_that_no_kernel_writes(device: DeviceInfo, kv_heads: int, reason: str) -> None:
    model = replace(LLAMA, dtype="bfloat16", head_dim=64, num_heads=kv_heads, num_kv_heads=kv_heads)
    found = choice.made_for(device, model, 64).choices["attention"]
    assert (found.implementation == "XLA") == bool(reason)
    assert reason in found.reason


def test_each_shape_of_heads_must_have_a_kernel() -> None:
    """Attention is one choice for all layers of a model, and a proof has one shape."""
    kinds: dict[str, Any] = {"layer_kinds": ("attention", "global"), "windows": (64, None)}
    model = replace(LLAMA, dtype="bfloat16", head_dim=64, **kinds)
    fits, wide = (replace(model, global_heads=HeadShape(kv_heads=2, head_dim=size)) for size in (128, 512))
    found = [choice.made_for(HOPPER, one, 64).choices["attention"] for one in (fits, wide)]
    assert [one.implementation for one in found] == ["XLA", "XLA"]
    assert found[0].reason == gpu_support.UNPROVEN_HEADS
    assert found[1].reason.startswith("head_dim is 512")


def test_a_cache_of_codes_has_native_kernels() -> None:
    model = replace(LLAMA, dtype="bfloat16", head_dim=64, kv_dtype="int8")
    assert choose(CPU, model, 64, directory()) == native_kernels(ELEMENTS, "bfloat16")


def test_a_cache_of_codes_has_the_kernels_of_hopper() -> None:
    """The kernel that writes codes is left where its attention is; other operations keep theirs."""
    model, made = replace(EXPERTS, kv_dtype="int8"), choice.hopper(132)
    found = choose(HOPPER, model, 64, directory(), RIGHT)
    assert found == replace(made, scales_apart=True)
    wrong = Verdict({"attention": Finding("wrong", "by 1")}, Finding("right"))
    refused, small = choice.proven(HOPPER, model, 64, wrong), choice.proven(HOPPER, model, 16, RIGHT)
    for without in (refused, small):
        assert (without.scales_apart, without.rotate_write, without.write_kv) == (False, None, REFERENCE_GPU.write_kv)
        assert without.gather_blocks is made.gather_blocks
        assert without.choices["rotation"].reason == UNREAD_CODES
    assert small.choices["attention"].reason.startswith("block_size is 16, not a multiple of 64")
    on_ampere = choice.made_for(replace(HOPPER, compute_capability=(8, 0)), model, 64).choices
    assert on_ampere["attention"].reason == "a cache of 8 bits is read on compute capability 9.0 only"
    assert on_ampere["copies"].implementation == "Ampere"


def test_an_old_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_support, "compiler_trouble", lambda: "ptxas 12.9.41 is older")
    found = chosen(HOPPER, "bfloat16", verdict=RIGHT)
    assert found == REFERENCE_GPU
    assert "ptxas 12.9.41" in found.reason


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
    kept = [field for name, fields in FIELDS.items() if name != "attention" for field in fields]
    assert all(getattr(found, field) is getattr(hopper, field) for field in kept)
    assert "Hopper" in found.reason
    for kernels in (REFERENCE, REFERENCE_GPU, choice.native(native())):
        assert for_windows_as_data(kernels, (8, None)) is kernels
