"""Bound the characters of a text that one token may stand for, to refuse a text far too long without reading it.

Normalizers may shorten a text, pre-tokenizers may drop some of it, and unknown characters may become one token
together. So a tokenizer has a bound only if all its parts are known to keep one. Host only, no jax.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import tokenizers

_COMPOSED = 4
"""Most characters that NFC makes one of: no character decomposes into more (Unicode, UAX 15)."""

_NORMALIZERS = {"NFC": _COMPOSED, "NFKC": _COMPOSED, "NFD": 1, "NFKD": 1, "Lowercase": 1, "Prepend": 1, "ByteLevel": 1}
"""Most characters of which each of these makes one."""

_PRE_TOKENIZERS = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength"}
"""Pre-tokenizers that keep every character; Split and Punctuation do so unless they are told to remove some."""

_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""Unicode's White_Space."""


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """``longest``: most characters of a text for which one token stands. ``spaces``: white space counts as well; else
    added tokens take the white space next to them, of any length."""

    longest: int
    spaces: bool

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that ``text`` has at least."""
        length = len(text) if self.spaces else len(text) - sum(map(text.count, _SPACE))
        return -(-length // self.longest)


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """What must be read from all tokens of a vocabulary: ``size``, the greatest id and one, and their ``lengths``."""

    size: int
    lengths: TokenLengths | None

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "VocabularyFacts":
        vocabulary = backend.get_vocab(with_added_tokens=True)
        return cls(max(vocabulary.values(), default=-1) + 1, token_lengths(backend, vocabulary))

    @classmethod
    def read(cls, text: str) -> "VocabularyFacts":
        """Return what ``to_json`` wrote."""
        data = json.loads(text)
        lengths = data["lengths"]
        return cls(data["size"], None if lengths is None else TokenLengths(**lengths))

    def to_json(self) -> str:
        """Return the facts as a line of text."""
        return json.dumps(asdict(self))


def token_lengths(backend: tokenizers.Tokenizer, vocabulary: Iterable[str]) -> TokenLengths | None:
    """Return what bounds the tokenizer's tokens; None: nothing that is known. ``vocabulary``: all its tokens."""
    shortening = _shortening(backend)
    if shortening is None or not _keeps_all(backend) or not _knows_all(backend):
        return None
    added = backend.get_added_tokens_decoder().values()
    names = [*vocabulary]
    if backend.normalizer is not None:  # added tokens are found in the normalised text, as normalised names
        names += [backend.normalizer.normalize_str(token.content) for token in added]
    spaces = not any(token.lstrip or token.rstrip for token in added)
    return TokenLengths(shortening * max(map(len, names), default=1), spaces)


def most_growth(backend: tokenizers.Tokenizer) -> int:
    """Return how many characters the replacements of the normalizer make of one, at most."""
    parts = _parts(backend.normalizer, "normalizers")
    return prod(max(1, len(part["content"])) for part in parts if part["type"] == "Replace")


def _shortening(backend: tokenizers.Tokenizer) -> int | None:
    """Return of how many characters the normalizer makes one at most; None: not known."""
    most = 1
    for part in _parts(backend.normalizer, "normalizers"):
        if part["type"] == "Replace":
            pattern, content = part["pattern"].get("String"), part["content"]
            # A text of white space would be taken by added tokens that take white space next to them.
            if pattern is None or len(pattern) > len(content) or any(char.isspace() for char in content):
                return None
        elif part["type"] in _NORMALIZERS:
            most *= _NORMALIZERS[part["type"]]
        else:
            return None
    return most


def _keeps_all(backend: tokenizers.Tokenizer) -> bool:
    """Whether the pre-tokenizer removes no character."""
    return all(
        part["type"] in _PRE_TOKENIZERS or (part["type"] in ("Split", "Punctuation") and part["behavior"] != "Removed")
        for part in _parts(backend.pre_tokenizer, "pretokenizers")
    )


def _knows_all(backend: tokenizers.Tokenizer) -> bool:
    """Whether every character becomes a token, and no two unknown ones become one together."""
    model = backend.model
    if isinstance(model, tokenizers.models.Unigram):
        return _has_bytes(model) and bool(json.loads(model.__getstate__())["byte_fallback"])
    if not isinstance(model, tokenizers.models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    if model.byte_fallback and _has_bytes(model):
        return True
    parts = [*_parts(backend.normalizer, "normalizers"), *_parts(backend.pre_tokenizer, "pretokenizers")]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    if parts and parts[-1]["type"] == "ByteLevel" and all(model.token_to_id(char) is not None for char in alphabet):
        return True
    return model.unk_token is not None and not model.fuse_unk


def _has_bytes(model: tokenizers.models.Model) -> bool:
    return all(model.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))


def _parts(part: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of a normalizer or pre-tokenizer, or of each in a sequence."""
    if part is None:
        return
    waiting: list[Mapping[str, Any]] = [json.loads(part.__getstate__())]
    while waiting:
        settings = waiting.pop(0)
        if settings["type"] == "Sequence":
            waiting = [*settings[inner], *waiting]
        else:
            yield settings
