"""Turn text into tokens, and give the bytes of each token. Host only, no jax.

Tokens become text through a table from token id to bytes, read once per token from the tokenizer's own decoder.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from jaxgen.core.errors import ConfigError, RequestRefusedError
from jaxgen.hardware.free_memory import return_free_memory
from jaxgen.text.completion import CompletionText
from jaxgen.text.detokenizer import NONE_SHOWN, Detokenizer
from jaxgen.text.quiet import quiet_transformers
from jaxgen.text.sentence_pieces import read_sentence_pieces
from jaxgen.text.token_lengths import VocabularyFacts, most_growth
from jaxgen.text.tokenizer_files import check_tokenizer_files
from jaxgen.text.unmarked_files import unmarked

_LOCAL_DECODERS = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Sequence", "Strip"}
"""Decoders under which each token but the first has one spelling that does not depend on its neighbours."""

MOST_REASON = 1000
"""Characters of what a library says of a tokenizer that it cannot load."""

_LONG_TEXT = 2**18
"""Least text, in characters, after which memory is given back; that takes some milliseconds."""
_MOST_GROWTH = 1024
"""Most characters that the normalizer may make of one: a prompt of a megabyte would take all memory."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer:
    """A tokenizer, which is read-only: its methods may be called from several threads at the same time.

    Raises ConfigError for a decoder whose text for a token depends on its neighbours (WordPiece, CTC).
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        facts: VocabularyFacts | None = None,
        encoder: Callable[[str, bool], list[int]] | None = None,
    ) -> None:
        """``facts``: of its vocabulary; None: they are read from it, a fifth of a second for 262,144 tokens.

        ``encoder``: returns the ids of a text, where the backend has the vocabulary alone; its flag is ``special``.
        """
        backend.no_truncation()
        backend.no_padding()
        if (growth := most_growth(backend)) > _MOST_GROWTH:
            raise ConfigError(
                f"the tokenizer's normalizer makes {growth} characters of one, the limit is {_MOST_GROWTH}"
            )
        self._backend = backend
        self._encoder = encoder
        self.facts = facts or VocabularyFacts.of(backend)
        kinds = set(_decoder_types(backend))
        if unknown := kinds - _LOCAL_DECODERS:
            names, supported = ", ".join(sorted(unknown)), ", ".join(sorted(_LOCAL_DECODERS))
            raise ConfigError(f"the tokenizer's decoder has {names}; supported: {supported}")
        added = backend.get_added_tokens_decoder()
        self._added = {token.content: i for i, token in added.items()}
        self._special = {i for i, token in added.items() if token.special}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._anchor = None if self._byte_level else self._find_anchor()
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}
        self._first_bytes: dict[int, bytes] = {}

    @classmethod
    def from_directory(cls, path: str | Path) -> "Tokenizer":
        """Return the tokenizer of a model directory (tokenizer.json, or files that transformers can turn into one).

        Never runs code from the directory and never uses the network. Raises ConfigError that names the directory.
        """
        if not Path(path).is_dir():
            raise ConfigError(f"tokenizer directory {path} does not exist")
        check_tokenizer_files(Path(path))
        if (pieces := read_sentence_pieces(Path(path))) is not None:
            return cls(pieces.backend, pieces.facts, pieces.encoder)
        with unmarked(Path(path)) as files:
            try:
                loaded = _auto_tokenizer().from_pretrained(
                    str(files), trust_remote_code=False, local_files_only=True, clean_up_tokenization_spaces=False
                )
            except Exception as error:  # transformers and tokenizers raise a dozen types, the latter a bare Exception
                reason = (str(error).strip() or type(error).__name__).replace(str(files), str(path))
                shown = textwrap.shorten(reason, MOST_REASON, placeholder=" ...")
                raise ConfigError(f"cannot load a tokenizer from {path}: {shown}") from error
        backend = getattr(loaded, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(f"the tokenizer in {path} has no fast version: add its tokenizer.json")
        try:
            return cls(backend)
        except ConfigError as error:
            raise ConfigError(f"cannot use the tokenizer in {path}: {error}") from error

    @classmethod
    def from_json(cls, text: str, facts: VocabularyFacts | None = None) -> "Tokenizer":
        """Return the tokenizer that ``to_json`` wrote, and its ``facts``. Raises the tokenizers library's error for an
        invalid text."""
        return cls(tokenizers.Tokenizer.from_str(text), facts)

    @property
    def vocab_size(self) -> int:
        """The greatest id of a token and one."""
        return self.facts.size

    @property
    def is_json(self) -> bool:
        """Whether ``to_json`` has all of this tokenizer, so that it encodes alike."""
        return self._encoder is None and not self._backend.encode_special_tokens

    def to_json(self) -> str | None:
        """Return this tokenizer as text; None if the library's format cannot express it (``split_special_tokens``).

        Of a SentencePiece model it has the vocabulary and the decoder, which is what grammars need.
        """
        return None if self._backend.encode_special_tokens else self._backend.to_str()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the token ids of ``text``; ``special``: with tokens that the tokenizer adds (BOS if it has one).

        Other threads run meanwhile: the batch call releases the interpreter lock, the call for one text does not.
        Raises RequestRefusedError for a text on which the tokenizers library fails.
        """
        try:
            tokens = (self._encoder or self._encode)(text, special)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # it is not an Exception, so handlers would miss it
                raise
            raise RequestRefusedError("prompt: the model's tokenizer fails on this text", "prompt") from None
        if len(text) >= _LONG_TEXT:
            return_free_memory()  # a text of a million tokens leaves hundreds of megabytes
        return tokens

    def last_tokens(self, tokens: Sequence[int], most: int, *, special: bool = True) -> Sequence[int]:
        """Return the last ``most`` tokens of a text that ``encode`` has turned into ``tokens``, or all.

        ``special``: tokens that the tokenizer adds in front (BOS if it has one) stay there, and count.
        """
        if len(tokens) <= most:
            return tokens
        added = self.encode("") if special else []
        front = 0
        while front < min(len(added), most) and tokens[front] == added[front]:
            front += 1
        return [*tokens[:front], *tokens[len(tokens) - most + front :]]

    def least_tokens(self, text: str) -> int:
        """Return a number of tokens that ``encode(text)`` has at least, by the characters of ``text``; 0: not known."""
        lengths = self.facts.lengths
        return 0 if lengths is None else lengths.least_tokens(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of ``tokens``, without special tokens.

        It equals Hugging Face's decode, except that bytes that are not UTF-8 do not affect the characters next to them.
        A run of byte-fallback tokens keeps its whole characters and has U+FFFD for the other bytes.
        """
        detokenizer = Detokenizer(self)
        return "".join(map(detokenizer.push, tokens)) + detokenizer.flush()

    def completion_text(
        self,
        *,
        prompt: Sequence[int] = (),
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        shown: Mapping[int, str] = NONE_SHOWN,
        include_stop: bool = False,
        skip_special: bool = True,
        skips: Callable[[], bool] | None = None,
    ) -> CompletionText:
        """Return an object that turns the tokens of a completion of ``prompt`` into its text; see CompletionText.

        ``skip_special`` False: all special tokens are shown. ``skips``: as in CompletionText.
        """
        return CompletionText(
            self,
            prompt=prompt,
            stop=stop,
            min_tokens=min_tokens,
            shown=shown,
            names=not skip_special,
            include_stop=include_stop,
            skips=skips,
        )

    def added_token(self, name: str) -> int | None:
        """Return the id of the added token of this name, special or not, or None if there is none."""
        return self._added.get(name)

    def is_special(self, token: int) -> bool:
        """Whether the token is left out of texts."""
        return token in self._special

    def text_bytes(self, token: int, *, first: bool = False) -> bytes:
        """Return the bytes that the token adds to a text; ``first``: as its first token, where some drop a space.

        They are empty for special tokens and for ids without a token (rows that only pad the vocabulary).
        """
        known = self._first_bytes if first else self._bytes
        text = known.get(token)
        if text is None:
            text = known[token] = b"" if token in self._special else self._read_bytes(token, first)
        return text

    def text(self, token: int) -> str | None:
        """Return the text that the token adds after whole characters, not as the first token.

        None: its bytes are not whole characters.
        """
        if token in self._texts:
            return self._texts[token]
        try:
            text = self.text_bytes(token).decode("utf-8")
        except UnicodeDecodeError:
            text = None
        self._texts[token] = text
        return text

    def token_text(self, token: int) -> str:
        """Return the token as shown with its log-probability.

        This is its text within a sentence, its name if it is special, or ``bytes:\\xe2\\x82`` if its bytes are not
        whole characters.
        """
        if token in self._special:
            return self._backend.id_to_token(token) or ""
        text = self.text(token)
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.text_bytes(token)) if text is None else text

    def _encode(self, text: str, special: bool) -> list[int]:
        tokens: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return tokens

    def _read_bytes(self, token: int, first: bool) -> bytes:
        name = self._backend.id_to_token(token)
        if name is None:
            return b""
        if self._byte_level:
            return _byte_level_bytes(name)
        byte = _BYTE_TOKEN.fullmatch(name) if self._byte_fallback else None
        if byte is not None and int(byte[1], 16) >= 0x80:
            return bytes.fromhex(byte[1])
        if first or self._anchor is None:
            return self._decode_exactly([token]).encode()
        both = self._decode_exactly([self._anchor, token])
        return both[len(self._decode_exactly([self._anchor])) :].encode()

    def _decode_exactly(self, tokens: list[int]) -> str:
        return self._backend.decode(tokens, skip_special_tokens=False)

    def _find_anchor(self) -> int | None:
        """Return a token that has text: what another token adds after it is that token's text within a sentence."""
        for token in range(self.vocab_size):
            name = self._backend.id_to_token(token)
            if name is not None and not _BYTE_TOKEN.fullmatch(name) and self._decode_exactly([token]):
                return token
        return None


def _auto_tokenizer() -> Any:
    # Imported on first use: importing transformers takes a second, and the import of a server does not need it.
    quiet_transformers()
    from transformers import AutoTokenizer

    return AutoTokenizer


def _decoder_types(backend: tokenizers.Tokenizer) -> Iterator[str]:
    if backend.decoder is None:
        return
    waiting: list[dict[str, Any]] = [json.loads(backend.decoder.__getstate__())]
    while waiting:
        decoder = waiting.pop()
        yield decoder["type"]
        waiting.extend(decoder.get("decoders", ()))


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character that byte-level BPE writes for the 256 bytes (Radford et al. 2019).

    Printable characters stand for themselves, and those from U+0100 on for the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_alphabet()
"""The byte that each character stands for in a byte-level vocabulary, as GPT-2 has it."""


def _byte_level_bytes(name: str) -> bytes:
    try:
        return bytes(BYTE_OF_CHAR[char] for char in name)
    except KeyError:  # an added token, whose name is its text
        return name.encode()
