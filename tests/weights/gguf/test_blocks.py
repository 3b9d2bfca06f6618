"""Numbers of blocks of GGUF types, by the definition of each type."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Kind

from jaxgen.weights.encodings.zero_weights import ZeroWeights
from jaxgen.weights.families.tensors import Parameter
from jaxgen.weights.gguf.file import GgufFile, StoredTensor


def q8_0(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return half(block[:2]) * block[2:].view(np.int8).astype(np.float64)


def q4_0(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return half(block[:2]) * (np.concatenate([block[2:] & 15, block[2:] >> 4]).astype(np.float64) - 8)


def q4_1(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return half(block[:2]) * np.concatenate([block[4:] & 15, block[4:] >> 4]) + half(block[2:4])


def q5_0(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return half(block[:2]) * (five_bits(block[2:6], block[6:]) - 16)


def q5_1(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    return half(block[:2]) * five_bits(block[4:8], block[8:]) + half(block[2:4])


def five_bits(high: npt.NDArray[np.uint8], low: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    bits = [int(high[i // 8]) >> (i % 8) & 1 for i in range(32)]
    return np.concatenate([low & 15, low >> 4]) + 16.0 * np.array(bits)


def scales_of_k(block: npt.NDArray[np.uint8]) -> list[tuple[float, float]]:
    """Scale and minimum of the eight groups of Q4_K and Q5_K: six bits each, in twelve bytes."""
    s = [int(byte) for byte in block[4:16]]
    codes = [(s[j] & 63, s[j + 4] & 63) for j in range(4)]
    codes += [(s[j + 8] & 15 | s[j] >> 6 << 4, s[j + 8] >> 4 | s[j + 4] >> 6 << 4) for j in range(4)]
    return [(half(block[:2]) * scale, half(block[2:4]) * minimum) for scale, minimum in codes]


def q4_k(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    quarters = block[16:].reshape(4, 32)
    codes = [part for quarter in quarters for part in (quarter & 15, quarter >> 4)]
    return np.concatenate([s * q - m for (s, m), q in zip(scales_of_k(block), codes, strict=True)])


def q5_k(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    high, quarters = block[16:48], block[48:].reshape(4, 32)
    codes = [part for quarter in quarters for part in (quarter & 15, quarter >> 4)]
    codes = [part + 16.0 * (high >> group & 1) for group, part in enumerate(codes)]
    return np.concatenate([s * q - m for (s, m), q in zip(scales_of_k(block), codes, strict=True)])


def q6_k(block: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    values = []
    for side in range(2):
        low, high = block[64 * side :][:64], block[128 + 32 * side :][:32]
        scales = block[192 + 8 * side :][:8].view(np.int8)
        for part in range(4):
            four = low[32 * (part % 2) :][:32] >> (4 * (part // 2)) & 15
            codes = (four | (high >> (2 * part) & 3) << 4).astype(np.float64) - 32
            values.append(codes * np.repeat(scales[2 * part :][:2], 16) * half(block[208:]))
    return np.concatenate(values)


def half(two: npt.NDArray[np.uint8]) -> float:
    return float(two.view(np.float16)[0])


@pytest.mark.parametrize("definition", [q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k], ids=lambda one: one.__name__)
def test_blocks_have_the_values_of_their_definition(definition: Callable[..., Any], tmp_path: Path) -> None:
    """Of random blocks, in more rows than are read at once."""
    kind = Kind[definition.__name__.upper()]
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, size=(6, 2, num_bytes), dtype=np.uint8)
    at = {"Q6_K": [208]}.get(kind.name, [0, 2] if kind.name.endswith(("1", "4_K", "5_K")) else [0])
    for start in at:
        blocks[..., start : start + 2] = rng.normal(size=(6, 2, 1)).astype(np.float16).view(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("blocks", blocks.reshape(6, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = GgufFile(tmp_path / "one.gguf").tensors["blocks"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxgen.weights.gguf.file._AT_ONCE", 4 * size)
        got = stored.dequantised(np.float32)
    want = np.array([[definition(block) for block in row] for row in blocks]).reshape(6, -1)
    assert stored.shape == (6, 2 * size)
    np.testing.assert_array_equal(got, want.astype(np.float32))


def test_scales_that_are_not_numbers_are_read_without_a_warning() -> None:
    """As damaged files have them: signalling ones, of which numpy tells where it computes with them."""
    blocks = np.zeros((2, 34), np.uint8)
    blocks[:, 0:2] = np.array([0x7C01], np.uint16).view(np.uint8)
    values = StoredTensor(Path("file"), (2, 32), Kind.Q8_0, blocks).dequantised("bfloat16")
    Parameter("a", ()).converted(np.full((2, 2), 0x7F800001, np.uint32).view(np.float32), "bfloat16")
    zeros = ZeroWeights()
    zeros.look("a", values)
    zeros.look("b", np.full((2, 2), 0x7F800001, np.uint32).view(np.float32))
    assert np.isnan(values.astype(np.float32)).all()
