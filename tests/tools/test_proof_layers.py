"""The proof of products, norms and rotations finds what is wrong or too slow. The twins stand in for kernels."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxgen.core.decoder_parts import NormConfig, QueryScale, RopeConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.layer_shapes import (
    NormShape,
    ProductShape,
    RotationShape,
    named_products,
    norms_of,
    products_of,
    rotation_trouble,
)
from jaxgen.kernels.proving.verdict import Finding, ServedShapes
from jaxgen.models.model import abstract_params
from jaxgen.tools import proof_layers, prove_kernels
from pallas_kernels.add_norm import add_rms_norm_ref
from pallas_kernels.dense_product import dense_product_ref, gated_product_ref
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref
from pallas_kernels.rotate_write import rotate_write_ref
from tests.support.engines import LLAMA
from tests.support.fake_gpu import H200
from tests.support.gpu_twins import PACKED, TWINS
from tests.support.hub_configs import described

SHAPES = ServedShapes(
    *(4, 2, 16, "bfloat16", (None,), 16, (16, 8), 8, 64),
    products=(ProductShape(128, 48), ProductShape(64, 64, "silu"), ProductShape(64, 80, of_layers=False)),
    norms=(NormShape("rms", 64, "bfloat16", bias=False, adds=True), NormShape("layer", 16, "float32", bias=True)),
    rotation=RotationShape(pairs=4, norm="float32", gated=True, scaled=True),
)


@pytest.fixture(autouse=True)
def _as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asserts a time: all products take the same."""
    monkeypatch.setattr(proof_layers, "least_seconds", lambda call: 1.0)


def found(kernels: Kernels, operation: str, monkeypatch: pytest.MonkeyPatch, shapes: ServedShapes = SHAPES) -> Finding:
    monkeypatch.setattr(prove_kernels, "device_info", lambda: H200.device)
    monkeypatch.setattr(prove_kernels, "kernels_of", lambda _: kernels)
    *_, report = prove_kernels.prove(shapes, H200.device, [operation])
    return report.findings[operation]


def test_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    times = "1.00 of XLA's time at 16 rows"
    assert found(TWINS, "products", monkeypatch) == Finding("right", measured=times)
    assert found(TWINS, "norms", monkeypatch) == Finding("right")
    assert found(TWINS, "rotation", monkeypatch) == Finding("right")


def test_what_is_timed_runs() -> None:
    timed = proof_layers.Timed(SHAPES.products[:2], 8, "bfloat16")
    for multiply in (proof_layers._own(TWINS), proof_layers._xla):
        assert timed.seconds(multiply) == 1.0
    assert pytest.approx(1.176, abs=1e-3) == proof_layers.MOST_RATIO


def with_product(product: Callable[..., Any]) -> Kernels:
    return replace(TWINS, packed=replace(PACKED, product=product))


def off_in_one_number(x: Any, *args: Any, **options: Any) -> Any:
    y = dense_product_ref(x, *args, **options)
    return y.at[3, 0].add(0.01)


def of_the_other_layer(x: Any, weight: Any, layer: Any, *args: Any, **options: Any) -> Any:
    return dense_product_ref(x, weight, 1 - layer, *args, **options)


def of_its_company(x: Any, weight: Any, layer: Any, count: Any, *args: Any, **options: Any) -> Any:
    return dense_product_ref(x, weight, layer, count, *args, **options) * jnp.where(count == 1, jnp.float32(1.001), 1)


def of_its_place(x: Any, *args: Any, **options: Any) -> Any:
    y = dense_product_ref(x, *args, **options)
    return jnp.where((jnp.arange(len(y)) == 2)[:, None], y * jnp.float32(1.001), y)


def of_its_width(x: Any, *args: Any, **options: Any) -> Any:
    return dense_product_ref(x, *args, **options) * jnp.float32(1 + 2.0**-20 * (len(x) == 8))


@pytest.mark.parametrize(
    ("product", "says"),
    [
        (off_in_one_number, "a product has other bits at another place"),
        (of_the_other_layer, "a product gives numbers that are not finite"),
        (of_its_company, "a product has other bits among 1 rows in a step of 16 tokens"),
        (of_its_place, "a product has other bits at another place"),
        (of_its_width, "a product has other bits among 1 rows in a step of 8 tokens"),
        (lambda *args, **options: 1.01 * dense_product_ref(*args, **options), "a product is wrong by 0.0"),
    ],
)
def test_wrong_products(product: Callable[..., Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = found(with_product(product), "products", monkeypatch)
    assert wrong.outcome == "wrong"
    assert says in wrong.reason


def test_a_wrong_gate_and_wrong_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_half(x: Any, weight: Any, *args: Any, **options: Any) -> Any:
        return gated_product_ref(x, jnp.roll(weight, 32, axis=1), *args, **options)

    wrong = found(replace(TWINS, packed=replace(PACKED, gated_product=other_half)), "products", monkeypatch)
    assert "a gated product is wrong by" in wrong.reason

    def by_width(x: Any, *args: Any, **options: Any) -> Any:
        return rms_norm_ref(x, *args, **options) * jnp.asarray(1 + (len(x) == 8), x.dtype)

    wrong = found(replace(TWINS, rms_norm=by_width), "norms", monkeypatch)
    assert "a norm has other bits among 1 rows in a step of 8 tokens" in wrong.reason

    def without_the_last_part(x: Any, parts: Any, *args: Any, **options: Any) -> Any:
        return add_rms_norm_ref(x, parts[:1], *args, **options)

    wrong = found(replace(TWINS, add_rms_norm=without_the_last_part), "norms", monkeypatch)
    assert "a norm of a sum is wrong by" in wrong.reason

    def unbiased(x: Any, weight: Any, bias: Any, *args: Any, **options: Any) -> Any:
        return layer_norm_ref(x, weight, bias * 0, *args, **options)

    wrong = found(replace(TWINS, layer_norm=unbiased), "norms", monkeypatch)
    assert "a norm is wrong by" in wrong.reason


def other_angle(x: Any, cache: Any, layer: Any, slots: Any, count: Any, angles: Any, *about: Any, **sizes: Any) -> Any:
    cos, sin = angles
    return rotate_write_ref(x, cache, layer, slots, count, (cos, -sin), *about, **sizes)


def another_slot(x: Any, cache: Any, layer: Any, slots: Any, *about: Any, **sizes: Any) -> Any:
    return rotate_write_ref(x, cache, layer, slots ^ 1, *about, **sizes)


def padding_too(x: Any, cache: Any, layer: Any, slots: Any, *about: Any, **sizes: Any) -> Any:
    q, cache = rotate_write_ref(x, cache, layer, slots, *about, **sizes)
    return q, cache.at[-1, 0].set(0)


def by_its_width(x: Any, *about: Any, **sizes: Any) -> Any:
    q, cache = rotate_write_ref(x, *about, **sizes)
    return q * jnp.asarray(1 + (len(x) == 8), x.dtype), cache


@pytest.mark.parametrize(
    ("rotate_write", "says"),
    [
        pytest.param(other_angle, "a rotation is wrong by", marks=pytest.mark.full),
        (another_slot, "a rotation gives numbers that are not finite"),
        pytest.param(padding_too, "a rotation gives numbers that are not finite", marks=pytest.mark.full),
        (by_its_width, "a rotation has other bits among 1 rows in a step of 8 tokens"),
    ],
)
def test_a_wrong_rotation(rotate_write: Callable[..., Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = found(replace(TWINS, rotate_write=rotate_write), "rotation", monkeypatch)
    assert (wrong.outcome, says in wrong.reason) == ("wrong", True), wrong.reason


def test_products_that_are_slower_than_xlas_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        proof_layers.Timed, "seconds", lambda timed, multiply: 1.0 if multiply is proof_layers._xla else 1.18
    )
    slow = found(TWINS, "products", monkeypatch)
    assert (slow.outcome, slow.is_final) == ("slow", True)
    assert slow.reason == "they take 1.18 of XLA's time at 16 rows, at most 1.18 is worth it"


@pytest.mark.parametrize(
    "name",
    ["LFM2-8B-A1B", "Qwen3.6-27B", "Qwen3-30B-A3B-Thinking-2507", "opt-125m", "gemma-4-26B-A4B-it", "GLM-4.7-Flash"],
)
def test_products_of_layers_are_those_of_their_parameters(name: str) -> None:
    model = described(name)
    matrices = {path: leaf.shape[-2:] for path, leaf in abstract_params(model).items() if path.endswith(".weight")}
    for path, shape in named_products(model):
        assert matrices[path] == (shape.outputs, shape.inputs), path


def test_shapes_of_layers() -> None:
    shapes = (ProductShape(64, 128), ProductShape(64, 64), ProductShape(64, 192, "silu"), ProductShape(96, 64))
    assert products_of(LLAMA) == (*shapes, ProductShape(64, 300, of_layers=False))
    assert norms_of(LLAMA) == (NormShape("rms", 64, "float32", bias=False, adds=True),)
    assert not norms_of(replace(LLAMA, placement="sandwich"))[0].adds
    of_heads = NormConfig(kind="layer", eps=1e-5, scale_in_float32=True)
    model = replace(LLAMA, attention=replace(LLAMA.attention, qk_norm=of_heads), dtype="bfloat16")
    assert norms_of(model)[1:] == (NormShape("layer", 16, "float32", bias=True),)
    assert ServedShapes.read(json.loads(json.dumps(asdict(SHAPES)))) == SHAPES


def test_shapes_of_rotations() -> None:
    """And why some norms of queries and keys have no such kernel."""
    assert RotationShape.of(LLAMA) == RotationShape(8)
    norm = NormConfig(eps=1e-5, scale_in_float32=True)
    options = replace(LLAMA.attention, qk_norm=norm, output_gate=True)
    positions = replace(
        LLAMA.positions, ropes=(RopeConfig(rotary_dim=4),), query_scale=QueryScale(beta=0.1, original_max_position=8)
    )
    model = replace(LLAMA, attention=options, positions=positions)
    assert RotationShape.of(model) == RotationShape(2, "float32", gated=True, scaled=True)
    assert rotation_trouble(model) is None
    for change, says in (
        ({"qk_norm_rows": True}, "over all heads together"),
        ({"qk_norm_heads": True}, "a weight for each head"),
        ({"qk_norm": replace(norm, kind="layer")}, "not RMS norms"),
        ({"qk_norm": replace(norm, affine=False)}, "not RMS norms"),
    ):
        assert says in str(rotation_trouble(replace(model, attention=replace(options, **change))))
