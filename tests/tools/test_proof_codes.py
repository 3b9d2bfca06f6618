"""The proof of products with quantized weights compares and times all of them. XLA's stand in for kernels."""

from dataclasses import replace

import pytest

from jaxgen.core.quantization import WeightFormat
from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.kernels.kernels import Kernels, QuantizedProduct
from jaxgen.kernels.proving.layer_shapes import ProductShape
from jaxgen.kernels.proving.verdict import ServedShapes
from jaxgen.tools import proof_layers
from jaxgen.tools.proof_codes import check_coded_products

BYTES, FP8 = WeightFormat(8, None), WeightFormat(8, None, floats=True)
SHAPES = ServedShapes(
    *(4, 2, 16, "bfloat16", (None,), 16, (16, 8), 8, 64),
    products=(
        ProductShape(128, 64, form=BYTES),
        ProductShape(128, 128, "silu", form=FP8),
        ProductShape(64, 64),  # numbers: not timed here
        ProductShape(128, 64, form=WeightFormat(4, 32, "float32", zeros=True)),  # no kernel takes it
    ),
)


def with_doubled(kernels: Kernels) -> Kernels:
    """Kernels whose products with int8 are twice what they should be."""
    right = kernels.quantized
    assert right is not None

    def doubled(*given: object, **named: object) -> object:
        return 2 * right.product(*given, **named)

    wrong: QuantizedProduct = replace(right, product=doubled)
    return replace(kernels, quantized=wrong)


def test_products_with_codes_are_compared_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def least_seconds(call: object) -> float:
        called.append(call())  # type: ignore[operator]
        return 1.0

    monkeypatch.setattr("jaxgen.tools.proof_codes.least_seconds", least_seconds)
    assert check_coded_products(SHAPES, REFERENCE_GPU) == "1.00 of XLA's time at 16 rows"
    assert [[one.shape for one in results] for results in called] == [[(16, 64), (16, 64)]] * 2
    with pytest.raises(AssertionError):
        check_coded_products(SHAPES, with_doubled(REFERENCE_GPU))


def test_a_model_without_codes_has_nothing_to_time() -> None:
    assert proof_layers.judged_times([], SHAPES, lambda *_, **__: 1.0) == ""
    assert check_coded_products(replace(SHAPES, products=SHAPES.products[2:]), REFERENCE_GPU) == ""
