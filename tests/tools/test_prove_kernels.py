"""The proof of kernels for GPUs finds what is wrong with them. The twins stand in for them: no GPU is here."""

import json
from dataclasses import asdict, replace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxgen.core.decoder_parts import AttentionConfig
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.verdict import ExpertShapes, Finding, ServedShapes
from jaxgen.tools import prove_kernels
from jaxgen.tools.proof_step import LONGEST, model_of, rows_of_step
from pallas_kernels.copy_blocks import scatter_blocks_ref
from pallas_kernels.expert_product import expert_product_ref
from pallas_kernels.plain_codes import plain_expert_product
from pallas_kernels.quantized_product import GroupedCodes
from pallas_kernels.write_kv import write_kv_ref
from tests.support.engines import LLAMA

SHAPES = ServedShapes(
    heads=4,
    kv_heads=2,
    head_dim=16,
    dtype="bfloat16",
    windows=(None,),
    block_size=16,
    token_budgets=(80,),
    max_num_seqs=12,
    max_model_len=1200,
)
CAPPED = replace(SHAPES, token_budgets=(12,), max_model_len=64, soft_cap=True, sinks=True)
HOPPER = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
attention_ref = REFERENCE_GPU.ragged_paged_attention
"""Folds as many tokens at a time as a context here has: the fewer, the longer it takes to compile."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the kernels for the device be those given."""

    def set_kernels(kernels: Kernels) -> None:
        monkeypatch.setattr(prove_kernels, "device_info", lambda: HOPPER)
        monkeypatch.setattr(prove_kernels, "kernels_of", lambda *_: kernels)

    return set_kernels


def prove(shapes: ServedShapes, expected: DeviceInfo) -> Finding:
    """Return what is wrong with attention or copies, if something is."""
    *_, report = prove_kernels.prove(shapes, expected, ["attention", "copies"])
    wrong = [one for one in report.findings.values() if not one.is_right]
    return report.otherwise or (wrong or [Finding("right")])[0]


def changed(**kernels: Any) -> Kernels:
    return replace(REFERENCE_GPU, **kernels)


def test_right_ones(made: Any) -> None:
    made(REFERENCE_GPU)
    assert prove(replace(SHAPES, windows=(40,), token_budgets=(80, 12)), HOPPER).is_right


def test_right_ones_with_a_soft_cap_and_sinks(made: Any) -> None:
    made(REFERENCE_GPU)
    assert prove(CAPPED, HOPPER).is_right


@pytest.mark.parametrize("left_out", ["soft_cap", "sinks"])
def test_what_leaves_them_out_is_wrong(made: Any, left_out: str) -> None:
    def careless(*args: Any, **options: Any) -> Any:
        return attention_ref(*args, **options | {left_out: None})

    made(changed(ragged_paged_attention=careless))
    verdict = prove(CAPPED, HOPPER)
    assert verdict.outcome == "wrong"
    assert "is wrong by" in verdict.reason


def test_shapes_say_what_the_model_has() -> None:
    limits: dict[str, Any] = {"block_size": 16, "token_budgets": (80,), "max_num_seqs": 12, "max_model_len": 64}
    for soft_cap, sinks in ((None, False), (50.0, False), (None, True)):
        model = replace(LLAMA, attention=AttentionConfig(soft_cap=soft_cap, sinks=sinks))
        shapes = ServedShapes.of(model, **limits)
        assert (shapes.soft_cap, shapes.sinks) == (soft_cap is not None, sinks)
        attention = model_of(shapes).attention
        assert (attention.soft_cap is not None, attention.sinks) == (shapes.soft_cap, shapes.sinks)


def test_a_step_is_full_of_decodes_and_prompts() -> None:
    for budget, most, longest in (
        (256, 256, 8192),
        (2048, 256, 131_072),
        (16, 1, 64),
        (64, 64, 40),
        (27, 48, 64),
        (1, 1, 1),
    ):
        shapes = replace(SHAPES, max_num_seqs=most, max_model_len=longest)
        rows = rows_of_step(shapes, budget)
        assert len(rows) <= most
        assert max(row.context for row in rows) == min(longest, LONGEST)
        assert all(1 <= row.length <= row.context <= longest for row in rows)
        assert [row.length > 1 for row in rows] == sorted(row.length > 1 for row in rows)
        tokens = sum(row.length for row in rows)
        assert tokens == budget or (tokens < budget and len(rows) == most)
        if most > 1 and budget > 2:
            assert {row.length > 1 for row in rows} == {False, True}


def test_long_contexts_and_what_windows_leave_out(made: Any) -> None:
    made(REFERENCE_GPU)
    shapes = replace(SHAPES, windows=(4800,), max_model_len=8000, block_size=64)
    assert max(row.context for row in rows_of_step(shapes, 80)) == 5400
    assert prove(shapes, HOPPER).is_right


def off_in_one_token(q: Any, *args: Any, **options: Any) -> Any:
    out = attention_ref(q, *args, **options)
    return out.at[len(q) // 2, 0, 0].add(0.1)


def unfinished(q: Any, *args: Any, **options: Any) -> Any:
    return attention_ref(q, *args, **options).at[3].set(jnp.nan)


def of_earlier_owners(
    q: Any, cache: Any, layer: Any, tables: Any, starts: Any, lens: Any, *rest: Any, **options: Any
) -> Any:
    """Adds up what is in the last block of each context, times 0."""
    last = tables[jnp.arange(len(lens)), jnp.maximum(lens - 1, 0) // cache.shape[4]]
    out = attention_ref(q, cache, layer, tables, starts, lens, *rest, **options)
    return out + 0 * jnp.where(lens > 0, cache[last, layer, 1].sum((1, 2, 3)), 0).sum()


def of_its_width(q: Any, *args: Any, **options: Any) -> Any:
    return attention_ref(q, *args, **options) * jnp.asarray(1 + 2**-7 * (len(q) == 8), q.dtype)


def test_attention_of_other_bits_in_a_narrow_step_is_refused(made: Any) -> None:
    made(changed(ragged_paged_attention=of_its_width))
    found = prove(replace(CAPPED, token_budgets=(12, 8)), HOPPER)
    assert "attention has other bits among 8 tokens in a step of 8" in found.reason


def in_the_wrong_slot(cache: Any, layer: Any, k: Any, v: Any, slots: Any) -> Any:
    return write_kv_ref(cache, layer, k, v, slots.at[-1].add(1))


def one_block_too_few(cache: Any, ids: Any, staging: Any, count: Any) -> Any:
    return scatter_blocks_ref(cache, ids, staging, count - 1)


@pytest.mark.parametrize(
    ("kernels", "says"),
    [
        (changed(ragged_paged_attention=off_in_one_token), "is wrong by 0."),
        (changed(ragged_paged_attention=unfinished), "not finite"),
        (changed(ragged_paged_attention=of_earlier_owners), "not finite"),
        (changed(write_kv=in_the_wrong_slot), "wrong"),
        (changed(scatter_blocks=one_block_too_few), "scattered blocks are wrong"),
    ],
)
def test_wrong_ones(made: Any, kernels: Kernels, says: str) -> None:
    made(kernels)
    verdict = prove(SHAPES, HOPPER)
    assert verdict.outcome == "wrong"
    assert says in verdict.reason


EXPERTS = replace(CAPPED, experts=ExpertShapes(experts=9, per_token=2, width=64, inner=32))


def check_experts(shapes: ServedShapes, says: str, *operations: str) -> None:
    """Check what is found of the product of experts, and that it is told what is being proven."""
    *first, last = prove_kernels.prove(shapes, HOPPER, operations)
    assert [report.proving for report in first] == list(operations)
    assert (last.proving, list(last.findings)) == (None, list(operations))
    for found in last.findings.values():
        assert found.outcome == ("wrong" if says else "right")
        assert says in found.reason


def off_in_one_row(x: Any, *args: Any) -> Any:
    return expert_product_ref(x, *args).at[len(x) // 4].add(0.01)


def of_the_other_layer(x: Any, weights: Any, layer: Any, starts: Any) -> Any:
    return expert_product_ref(x, weights[:, ::-1], layer, starts)


def of_its_company(x: Any, weights: Any, layer: Any, starts: Any) -> Any:
    return expert_product_ref(x, weights, layer, starts) + starts[-1].astype(jnp.float32) * 1e-5


@pytest.mark.parametrize(
    ("product", "says"),
    [
        (expert_product_ref, ""),
        (off_in_one_row, "a product of experts is wrong by"),
        (of_the_other_layer, "a product of experts gives numbers that are not finite"),
        (of_its_company, "a product of experts has other bits among other rows"),
    ],
)
def test_products_of_experts(made: Any, product: Any, says: str) -> None:
    made(changed(expert_product=product))
    check_experts(EXPERTS, says, "experts")


CODED = replace(EXPERTS, experts=ExpertShapes(9, 2, 64, 32, (WeightFormat(4, 32, floats=True), WeightFormat(8, None))))


def off_in_a_code(x: Any, weight: GroupedCodes, *args: Any, **about: Any) -> Any:
    moved = weight._replace(codes=weight.codes.at[:, 4, 0].set(weight.codes[:, 4, 1]))
    return plain_expert_product(x, moved, *args, **about)


@pytest.mark.parametrize(
    ("product", "says"), [(plain_expert_product, ""), (off_in_a_code, "a product of experts is wrong by")]
)
def test_products_of_coded_experts(made: Any, product: Any, says: str) -> None:
    assert REFERENCE_GPU.quantized is not None
    assert REFERENCE_GPU.floats is not None
    quantized, floats = (
        replace(one, expert_product=product) for one in (REFERENCE_GPU.quantized, REFERENCE_GPU.floats)
    )
    made(changed(expert_product=expert_product_ref, quantized=quantized, floats=floats))
    check_experts(CODED, says, "codes")


def test_what_is_told_in_json_is_read() -> None:
    for shapes in (SHAPES, EXPERTS, CODED):
        assert ServedShapes.read(json.loads(json.dumps(asdict(shapes)))) == shapes


def test_what_raises(made: Any) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("INVALID_ARGUMENT: Input buffer 4 is not 256-byte aligned")

    made(changed(write_kv=refuse))
    verdict = prove(SHAPES, HOPPER)
    assert (verdict.outcome, verdict.is_final) == ("wrong", True)
    assert "not 256-byte aligned" in verdict.reason


def test_another_device_is_no_verdict(made: Any) -> None:
    made(REFERENCE_GPU)
    verdict = prove(SHAPES, replace(HOPPER, num_cores=114))
    assert (verdict.outcome, verdict.is_final) == ("unavailable", False)
