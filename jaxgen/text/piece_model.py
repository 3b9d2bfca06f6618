"""Read what a SentencePiece model says of itself: its pieces and its normalisation. Host only, no jax.

The library sentencepiece does not tell these. The format is Protocol Buffers:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from collections.abc import Iterator
from dataclasses import dataclass

_NORMAL = 1
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(2, 7)
"""Values of ``SentencePiece.type``."""
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
"""Fields of ``ModelProto``."""
_PIECE, _KIND = 1, 3
"""Fields of ``SentencePiece``."""
_SUFFIX, _BOS, _EOS = 24, 46, 47
"""Fields of ``TrainerSpec``."""
_ENDS = {_BOS: b"<s>", _EOS: b"</s>"}
"""Their defaults."""
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_EXTRA = 2, 3, 4
"""Fields of ``NormalizerSpec``."""
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
"""Wire types."""


@dataclass(frozen=True, slots=True)
class PieceModel:
    """``data``: the model's bytes. ``pieces`` and ``kinds``: by id.

    ``charsmap``: whether characters are replaced. ``dummy_prefix``: whether a text gets a space in front, or behind
    (``suffix``). ``removes_extra``: whether spaces at the ends and repeated ones are removed. ``bos``, ``eos``: the
    pieces with which texts begin and end.
    """

    data: bytes
    pieces: tuple[str, ...]
    kinds: tuple[int, ...]
    charsmap: bool
    dummy_prefix: bool
    removes_extra: bool
    suffix: bool
    bos: str
    eos: str

    @classmethod
    def read(cls, data: bytes) -> "PieceModel | None":
        """Return the model that the bytes are; None: they are none, but a list of tokens for tiktoken, say."""
        fields: dict[int, list[int | bytes]] = {}
        try:
            for number, value in _fields(data):
                fields.setdefault(number, []).append(value)
            pieces = [dict(_fields(_message(message))) for message in fields[_PIECES]]
            trainer, normalizer = (
                {number: value for message in fields.get(part, ()) for number, value in _fields(_message(message))}
                for part in (_TRAINER, _NORMALIZER)
            )
            names = tuple(_message(piece[_PIECE]).decode() for piece in pieces)
            bos, eos = (_message(trainer.get(field, default)).decode() for field, default in _ENDS.items())
        except (ValueError, KeyError):  # UnicodeDecodeError is a ValueError
            return None
        return cls(
            data=data,
            pieces=names,
            kinds=tuple(int(piece.get(_KIND, _NORMAL)) for piece in pieces),
            charsmap=bool(normalizer.get(_CHARSMAP)),
            dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, True)),
            removes_extra=bool(normalizer.get(_REMOVE_EXTRA, True)),
            suffix=bool(trainer.get(_SUFFIX, False)),
            bos=bos,
            eos=eos,
        )

    def without_prefix(self) -> bytes:
        """Return the bytes of the model that adds no space: of a field that is there twice, the last value holds."""
        return self.data + bytes([_NORMALIZER << 3 | _LENGTH, 2, _DUMMY_PREFIX << 3 | _VARINT, 0])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the numbers and values of a message's fields. Raises ValueError for bytes that are not a valid message."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == _LENGTH:
            size, place = _varint(data, place)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place + size > len(data):
            raise ValueError("a field ends behind the message")
        yield number, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at ``place``, seven bits a byte, and the place behind it."""
    value = shift = 0
    while place < len(data) and shift < 64:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number does not end")


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message must be")
    return value
