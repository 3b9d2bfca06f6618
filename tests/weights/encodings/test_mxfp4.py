"""MXFP4 of experts, against its definition in float64."""

import ml_dtypes
import numpy as np
import pytest

from jaxgen.weights.encodings.encoding import RawWeight
from jaxgen.weights.encodings.mxfp4 import Mxfp4
from jaxgen.weights.encodings.quantize import dequantized
from jaxgen.weights.files.safetensors import Tensor

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@pytest.mark.parametrize("scales", [(2, 251), (0, 40), (120, 130), (250, 254)])
def test_every_number_is_exact(scales: tuple[int, int]) -> None:
    """Also where powers of two leave the range of normal numbers."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, size=(2, 3, 4, 16), dtype=np.uint8)
    powers = rng.integers(*scales, size=(2, 3, 4), endpoint=True).astype(np.uint8)
    powers[0, 0, :2] = scales
    weight = Mxfp4().read(RawWeight({"codes": blocks, "scales": powers}, (2, 3, 128), None))
    got = dequantized(weight, ml_dtypes.bfloat16)
    assert got.shape == (2, 3, 128)
    for expert, output, group, byte in np.ndindex(blocks.shape):
        for half in range(2):
            code = int(blocks[expert, output, group, byte]) >> (4 * half) & 15
            want = np.float64(NUMBERS[code]) * 2.0 ** (int(powers[expert, output, group]) - 127)
            found = got[expert, output, group * 32 + 2 * byte + half]
            assert float(found) == want or (not np.isfinite(float(found)) and abs(want) > 3.38e38)
            assert np.signbit(float(found)) == np.signbit(want)


@pytest.mark.parametrize(
    ("blocks", "scales"), [((2, 3, 4, 8), (2, 3, 4)), ((2, 3, 4, 16), (2, 3, 5)), ((3, 4, 16), (3, 4))]
)
def test_shapes_that_do_not_fit_are_seen(blocks: tuple[int, ...], scales: tuple[int, ...]) -> None:
    headers = {"codes": Tensor("U8", blocks, 0, 0), "scales": Tensor("U8", scales, 0, 0)}
    with pytest.raises(ValueError, match=r"has (blocks|scales) of dtype U8 and shape"):
        Mxfp4().kept_as(headers, (2, 3, 128))


def test_a_power_of_two_that_is_none_is_refused() -> None:
    blocks, powers = np.zeros((1, 1, 1, 16), np.uint8), np.full((1, 1, 1), 255, np.uint8)
    with pytest.raises(ValueError, match="has scales that are not finite"):
        Mxfp4().read(RawWeight({"codes": blocks, "scales": powers}, (1, 1, 32), None))
