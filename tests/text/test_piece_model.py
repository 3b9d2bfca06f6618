"""The fields of a SentencePiece model are read from its bytes, and other files are told apart."""

import pytest

from jaxgen.text.piece_model import BYTE, CONTROL, PieceModel


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return bytes([*_varint(number << 3), *_varint(value)])
    return bytes([*_varint(number << 3 | 2), *_varint(len(value))]) + value


def _varint(value: int) -> list[int]:
    return [value] if value < 0x80 else [value & 0x7F | 0x80, *_varint(value >> 7)]


def piece(text: str, kind: int | None = None) -> bytes:
    score = b"\x15\x00\x00\x80\x3f"
    return field(1, field(1, text.encode()) + score + (b"" if kind is None else field(3, kind)))


PIECES = piece("<s>", CONTROL) + piece("▁東") + piece("<0x00>", BYTE)


def test_fields_have_the_formats_defaults() -> None:
    model = PieceModel.read(PIECES)
    assert model is not None
    assert (model.pieces, model.kinds) == (("<s>", "▁東", "<0x00>"), (CONTROL, 1, BYTE))
    assert (model.charsmap, model.dummy_prefix, model.removes_extra, model.suffix) == (False, True, True, False)


def test_fields_are_read() -> None:
    normalizer = field(1, b"nmt_nfkc") + field(2, b"\x00" * 300) + field(3, 0) + field(4, 0)
    model = PieceModel.read(PIECES + field(2, field(24, 1)) + field(3, normalizer))
    assert model is not None
    assert (model.charsmap, model.dummy_prefix, model.removes_extra, model.suffix) == (True, False, False, True)


def test_the_prefix_can_be_left_out() -> None:
    model = PieceModel.read(PIECES + field(3, field(1, b"identity")))
    assert model is not None
    without = PieceModel.read(model.without_prefix())
    assert without is not None
    assert (without.pieces, without.dummy_prefix) == (model.pieces, False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"IQ== 0\nIg== 1\n",
        PIECES[:-1],
        field(2, b""),
        field(1, 5),
        b"\x0b",
        b"\xff" * 12,
        field(1, field(1, b"\xff")),
    ],
    ids=["empty", "tiktoken", "cut", "no pieces", "number", "group", "endless", "no text"],
)
def test_other_files_are_none(data: bytes) -> None:
    assert PieceModel.read(data) is None
