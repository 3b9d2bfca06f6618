"""Make the tokenizer of a SentencePiece model that has no tokenizer.json. Host only, no jax.

The library sentencepiece encodes, so the ids are the model's own: no other library has its ties, its sums in 32 bits
and its character maps. Only texts of special tokens are found before it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, decoders, models

from jaxgen.core.errors import ConfigError, RequestRefusedError
from jaxgen.files.text_files import read_text
from jaxgen.text.piece_model import BYTE, CONTROL, UNKNOWN, USER_DEFINED, PieceModel
from jaxgen.text.token_lengths import TokenLengths, VocabularyFacts
from jaxgen.text.tokenizer_files import FAST, OTHERS, REMEDY, SENTENCE_PIECE, check_library

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

_SPACE = "\u2581"
_CLASSES = ("", "Llama", "CodeLlama", "Gemma", "T5", "PreTrained", "TokenizersBackend")
"""Values of ``tokenizer_class``, without its ending, under which ids are those of the model."""
_CONFIG, _TOKENS_MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word")
"""Of an added token: what decides where it is found, and which spaces next to it are lost."""
_MUST_BE_OFF = ("do_lower_case", "sp_model_kwargs")
"""Fields of tokenizer_config.json that change texts or draw at random."""
_EXTRA_IDS, _MOST_EXTRA_IDS = 100, 10_000
"""Of a T5Tokenizer that does not say how many it has, and of any."""


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """``backend``: the vocabulary, which turns tokens into text; it has no merges. ``facts``: of it."""

    backend: tokenizers.Tokenizer
    facts: VocabularyFacts
    encoder: "PieceEncoder"


def read_sentence_pieces(directory: Path) -> SentencePieces | None:
    """Return the tokenizer of a directory's SentencePiece model; None: its tokenizer is made of another file.

    Raises ConfigError that names what is not as the model has it.
    """
    if (directory / FAST).exists():
        return None
    path = next((directory / name for name in SENTENCE_PIECE if (directory / name).is_file()), None)
    if path is None:
        return None
    others = any(any(directory.glob(name)) for name in OTHERS)
    data = path.read_bytes()
    if (model := PieceModel.read(data)) is None:
        if others or (data.isascii() and b"\0" not in data):  # a list of tokens for tiktoken, or a name without content
            return None
        raise ConfigError(f"{path} is not a SentencePiece model: it is damaged")
    config = _Config(directory)
    if not config.plain_class() and others:
        return None
    config.check(model, path)
    check_library(path)
    words = _backend(model, config)
    ends = [config.end(name, model, words) for name in ("bos", "eos")]
    return SentencePieces(words, _facts(model, words), PieceEncoder(model, words, config, *ends, path=path))


class PieceEncoder:
    """Turns texts into tokens as the library does. Several threads may call it: the library lets others run."""

    def __init__(
        self,
        model: PieceModel,
        words: tokenizers.Tokenizer,
        config: "_Config",
        bos: int | None,
        eos: int | None,
        *,
        path: Path,
    ) -> None:
        added = words.get_added_tokens_decoder()
        self._before, self._behind = ([] if end is None else [end] for end in (bos, eos))
        self._first = _processor(model.data, path)
        alike = config.data.get("legacy") is True or not model.dummy_prefix
        self._later = self._first if alike else _processor(model.without_prefix(), path)
        self._splitter = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        split_tokens = {} if config.data.get("split_special_tokens") is True else added
        split_tokens = {i: token for i, token in split_tokens.items() if not _of_library(model, i, token)}
        self._splitter.add_tokens([*split_tokens.values()])
        self._ids = {self._splitter.token_to_id(token.content): i for i, token in split_tokens.items()}

    def __call__(self, text: str, special: bool) -> list[int]:
        """Return the ids of a text; ``special``: with BOS and EOS, if texts have them.

        Raises RequestRefusedError for a text that is not valid Unicode.
        """
        try:
            ids = [token for part in self._parts(text) for token in part]
        except (RuntimeError, UnicodeError, TypeError):  # half a surrogate
            raise RequestRefusedError("prompt: the model's tokenizer fails on this text", "prompt") from None
        return [*self._before, *ids, *self._behind] if special else ids

    def _parts(self, text: str) -> Iterator[list[int]]:
        """Yield the ids of each added token, and of the text between two."""
        (split,) = self._splitter.encode_batch([text])
        for split_id, (begin, end) in zip(split.ids, split.offsets, strict=True):
            if split_id in self._ids:
                yield [self._ids[split_id]]
            else:
                yield (self._later if begin else self._first).encode(text[begin:end])


class _Config:
    """What the files next to a model say of its tokenizer."""

    def __init__(self, directory: Path) -> None:
        self._source = directory / _CONFIG
        self.data = _read(directory / _TOKENS_MAP) | _read(self._source)
        named = self.data.get("tokenizer_class") or _read(directory / "config.json").get("tokenizer_class")
        self.named_class = str(named or "")
        self.added = {i: AddedToken(text, special=False, normalized=False) for text, i in _ids(directory / _ADDED)}
        listed = self.data.get("added_tokens_decoder")
        for i, token in (listed if isinstance(listed, dict) else {}).items():
            if not i.isdecimal() or not isinstance(token, dict) or not _text(token):
                raise ConfigError(
                    f"{self._source}: added_tokens_decoder must have objects with content by id, not {i!r}"
                )
            self.added[int(i)] = _added(token, special=bool(token.get("special", False)))

    def plain_class(self) -> bool:
        """Whether ``tokenizer_class`` has the ids of the model."""
        return self._bare_class() in _CLASSES

    def check(self, model: PieceModel, path: Path) -> None:
        """Raise ConfigError for a field under which ids are not those of the model."""
        if not self.plain_class():
            raise ConfigError(
                f"{self._source}: tokenizer_class {self.named_class} is not known to have the ids of {path.name}: "
                f"{REMEDY}"
            )
        for name in _MUST_BE_OFF:
            if self.data.get(name):
                raise ConfigError(f"{self._source}: {name} is {self.data[name]!r}, but {path.name} has no such step")
        prefix = self.data.get("add_prefix_space")
        if isinstance(prefix, bool) and prefix != model.dummy_prefix:
            raise ConfigError(
                f"{self._source}: add_prefix_space is {prefix}, but add_dummy_prefix of {path.name} is "
                f"{model.dummy_prefix}: leave the field out"
            )

    def special(self) -> list[AddedToken]:
        """Return the special tokens that have names, and the tokens that lists have."""
        named = [self.data.get(name) for name in _NAMED]
        for name in _LISTS:
            more = self.data.get(name)
            named += [*more.values()] if isinstance(more, dict) else more if isinstance(more, list) else []
        if self._bare_class() == "T5":
            count = self.data.get("extra_ids", _EXTRA_IDS)
            if not isinstance(count, int) or not 0 <= count <= _MOST_EXTRA_IDS:
                raise ConfigError(f"{self._source}: extra_ids must be from 0 to {_MOST_EXTRA_IDS}, not {count!r}")
            named += [f"<extra_id_{i}>" for i in reversed(range(count))]
        if (odd := next((token for token in named if token and _text(token) is None), None)) is not None:
            raise ConfigError(f"{self._source}: a special token must be a text or an object with content, not {odd!r}")
        return [_added(token, special=True) for token in named if token]

    def end(self, name: str, model: PieceModel, words: tokenizers.Tokenizer) -> int | None:
        """Return the id of BOS or EOS if texts have it. Raises ConfigError for one that is asked for and not there."""
        asked = self.data.get(f"add_{name}_token")
        t5 = self._bare_class() == "T5"
        if asked is False or (asked is None and t5 != (name == "eos")):
            return None
        text = _text(self.data.get(f"{name}_token")) or {"bos": model.bos, "eos": model.eos}[name]
        token = words.token_to_id(text)
        if token is not None and token >= len(model.pieces) and token not in self.added:
            token = None  # an id that this tokenizer made up: the model has no row for it
        if token is None and asked:
            raise ConfigError(f"{self._source}: add_{name}_token is true, but there is no token {text!r}")
        return token

    def _bare_class(self) -> str:
        return self.named_class.removesuffix("Fast").removesuffix("Tokenizer")


def _backend(model: PieceModel, config: _Config) -> tokenizers.Tokenizer:
    """Return the vocabulary with the names, kinds and decoder of its tokens."""
    renamed = {i: token.content for i, token in config.added.items() if i < len(model.pieces)}
    vocabulary = {renamed.get(i, piece): i for i, piece in enumerate(model.pieces)}
    if len(vocabulary) != len(model.pieces):
        raise ConfigError("added_tokens_decoder names a token as another piece of the model")
    has_bytes = BYTE in model.kinds
    words = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=has_bytes))
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " ")]
    steps += [decoders.ByteFallback()] if has_bytes else []
    steps += [decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if model.dummy_prefix or model.removes_extra else []
    words.decoder = decoders.Sequence(steps)
    own = [(i, renamed.get(i, model.pieces[i]), kind) for i, kind in enumerate(model.kinds)]
    words.add_special_tokens([_added(name, special=True) for _, name, kind in own if kind in (UNKNOWN, CONTROL)])
    words.add_tokens([_added(name, special=False) for _, name, kind in own if kind == USER_DEFINED])
    for i, token in sorted(config.added.items()):
        words.add_tokens([token])
        if words.token_to_id(token.content) != i:
            raise ConfigError(f"the added token {token.content!r} cannot have the id {i}")
    words.add_special_tokens(config.special())
    return words


def _of_library(model: PieceModel, token: int, added: AddedToken) -> bool:
    """Whether the library itself finds an added token in texts."""
    own = token < len(model.pieces) and model.kinds[token] == USER_DEFINED and model.pieces[token] == added.content
    return own and not any(getattr(added, name) for name in _FLAGS)


def _facts(model: PieceModel, words: tokenizers.Tokenizer) -> VocabularyFacts:
    names = words.get_vocab(with_added_tokens=True)
    added = words.get_added_tokens_decoder().values()
    size = max(names.values(), default=-1) + 1
    if model.charsmap or BYTE not in model.kinds:
        return VocabularyFacts(size, None)
    spaces = not model.removes_extra and not any(token.lstrip or token.rstrip for token in added)
    return VocabularyFacts(size, TokenLengths(max(map(len, names), default=1), spaces))


def _processor(data: bytes, path: Path) -> "SentencePieceProcessor":
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=data)
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{path} is not a SentencePiece model: {error}") from error


def _added(token: str | Mapping[str, Any], *, special: bool) -> AddedToken:
    flags = {} if isinstance(token, str) else {name: bool(token.get(name, False)) for name in _FLAGS}
    return AddedToken(_text(token) or "", special=special, normalized=False, **flags)


def _text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _ids(path: Path) -> list[tuple[str, int]]:
    return [(text, i) for text, i in _read(path).items() if isinstance(i, int)]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    return data if isinstance(data, dict) else {}
