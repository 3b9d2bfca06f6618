"""Quantised tensors of GGUF files as codes: the gguf package's numbers, and the bytes of the file."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from jaxgen.weights.gguf.codes import LAYOUTS, codes_of, kept_form
from jaxgen.weights.gguf.file import StoredTensor

MOST = {"Q3_K": 1.33, "Q4_K": 1.03, "Q5_K": 1.03, "Q2_K": 1.2, "MXFP4": 1.06}
"""Bytes in memory, as a share of the file's, where they are more: scales and minimums have a byte each."""


def draw(kind: str, shape: tuple[int, ...], seed: int = 0) -> StoredTensor:
    """A tensor of random blocks, whose floats are those of weights."""
    form, of_block = LAYOUTS[kind].form, gguf.GGML_QUANT_SIZES[Kind[kind]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // of_block[0], of_block[1]), dtype=np.uint8)
    if kind == "MXFP4":  # powers of two about one
        blocks[..., 0] = rng.integers(0, 250, blocks.shape[:-1])
    floats = (
        []
        if kind == "MXFP4"
        else [0]
        if kind in ("Q8_0", "Q4_0", "Q5_0")
        else {"Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208]}.get(kind, [0, 2])
    )
    for place in floats:
        drawn = rng.uniform(-1, 1, blocks.shape[:-1]).astype(np.float16) / np.float16(64 << form.bits)
        blocks[..., place : place + 2] = drawn[..., None].view(np.uint8)
    return StoredTensor(Path("drawn"), shape, Kind[kind], blocks.reshape(*shape[:-1], -1))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_numbers_are_the_package_s_and_bytes_the_file_s(kind: str) -> None:
    stored = draw(kind, (2, 5, 512))
    form = kept_form([stored])
    assert form is not None
    weight = codes_of([stored], form)
    assert weight is not None
    np.testing.assert_array_equal(weight.dequantized(), stored.dequantised(np.float32))
    assert 1 <= weight.nbytes / stored.data.nbytes <= MOST.get(kind, 1)
    assert weight.nbytes == form.num_bytes(weight.shape)


def test_scales_that_are_not_finite_are_refused() -> None:
    stored = draw("Q4_K", (3, 512))
    stored.data[1, 2:4] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    form = kept_form([stored])
    assert form is not None
    with pytest.raises(ValueError, match="has block minimums that are not finite"):
        codes_of([stored], form)


def test_types_without_codes_or_of_several_formats_are_not_kept() -> None:
    codes = draw("Q4_K", (3, 512))
    for kind in (Kind.IQ4_XS, Kind.F16, Kind.Q6_K):
        assert kept_form([codes, StoredTensor(Path("drawn"), (3, 512), kind, codes.data)]) is None
