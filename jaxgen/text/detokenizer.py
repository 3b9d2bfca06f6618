"""Turn tokens into text, one at a time. Host only, no jax.

A token costs one look-up in the tokenizer's table of bytes, however long the text is, and no UTF-8 character is ever
split.
"""

import codecs
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

NONE_SHOWN: Mapping[int, str] = MappingProxyType({})


class TokenTexts(Protocol):
    """A tokenizer's facts about single tokens."""

    def is_special(self, token: int) -> bool: ...
    def token_text(self, token: int) -> str: ...
    def text(self, token: int) -> str | None: ...
    def text_bytes(self, token: int, *, first: bool = False) -> bytes: ...


class Detokenizer:
    """Takes tokens one by one and returns text as soon as it is certain. Joined, it is ``Tokenizer.decode`` of all.

    A completion's text continues its prompt: ``prompt`` decides whether a leading space is dropped, and the bytes of a
    character that is unfinished at the prompt's end are part of the completion's text. Tokens in ``shown``, special
    ones or others, appear as the text that stands there for them; with ``names`` other special tokens appear as their
    names.
    """

    def __init__(
        self,
        tokenizer: TokenTexts,
        prompt: Sequence[int] = (),
        shown: Mapping[int, str] = NONE_SHOWN,
        *,
        names: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._names = names
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True
        self._whole = False
        """Whether the text has begun and no character of it is unfinished."""
        for token in _tail(tokenizer, prompt):
            self._push_text(token)

    def push(self, token: int) -> str:
        shown = self._shown.get(token)
        if shown is None and self._names and self._tokenizer.is_special(token):
            shown = self._tokenizer.token_text(token)
        return self._push_text(token) if shown is None else self.flush() + shown

    def _push_text(self, token: int) -> str:
        if self._whole and (text := self._tokenizer.text(token)) is not None:
            return text
        piece = self._tokenizer.text_bytes(token, first=self._at_start)
        if self._at_start:
            # A token that has only the dropped space counts as the first token too.
            self._at_start = not self._tokenizer.text_bytes(token)
        text = self._utf8.decode(piece)
        self._whole = not (self._at_start or self._utf8.getstate()[0])
        return text

    def flush(self) -> str:
        """Return U+FFFD if a character is unfinished, else an empty string."""
        return self._utf8.decode(b"", final=True)


def _tail(tokenizer: TokenTexts, prompt: Sequence[int]) -> Sequence[int]:
    """Return the last tokens of ``prompt`` that decide how the next token is decoded.

    These have 4 bytes or more: a UTF-8 character has at most 4 bytes, and its first byte is never a later byte of
    another one.
    """
    size = 0
    for i in range(len(prompt) - 1, -1, -1):
        size += len(tokenizer.text_bytes(prompt[i]))
        if size >= 4:
            return prompt[i:]
    return prompt
