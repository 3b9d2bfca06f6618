"""Tokens back to text, one at a time, up to a stop string. Host only, no jax.

A token costs one look-up in the tokenizer's table of bytes, however long the text already is, and a UTF-8 character is
never broken.
"""

import codecs
from collections.abc import Container, Sequence
from typing import Protocol

from jaxgen.text.stop_strings import StopStrings


class TokenTexts(Protocol):
    """What a tokenizer knows of single tokens."""

    def is_special(self, token: int) -> bool: ...
    def token_text(self, token: int) -> str: ...
    def text(self, token: int) -> str | None: ...
    def text_bytes(self, token: int, *, first: bool = False) -> bytes: ...


class Detokenizer:
    """Tokens in one by one, text out as soon as it is certain. What comes out joins to ``Tokenizer.decode`` of all.

    A completion's text continues its prompt: ``prompt`` decides whether a leading space is dropped, and bytes of a
    character that the prompt left unfinished come out with the completion. Special tokens that are ``shown`` come out
    as their names.
    """

    def __init__(self, tokenizer: TokenTexts, prompt: Sequence[int] = (), shown: Container[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True
        self._whole = False
        """Whether the text has begun and no character of it is unfinished."""
        for token in _tail(tokenizer, prompt):
            self._push_text(token)

    def push(self, token: int) -> str:
        if token in self._shown and self._tokenizer.is_special(token):
            return self._utf8.decode(self._tokenizer.token_text(token).encode())
        return self._push_text(token)

    def _push_text(self, token: int) -> str:
        if self._whole and (text := self._tokenizer.text(token)) is not None:
            return text
        piece = self._tokenizer.text_bytes(token, first=self._at_start)
        if self._at_start:
            # A token that is nothing but the dropped space is the first token all the same.
            self._at_start = not self._tokenizer.text_bytes(token)
        text = self._utf8.decode(piece)
        self._whole = not (self._at_start or self._utf8.getstate()[0])
        return text

    def flush(self) -> str:
        """U+FFFD if a character is unfinished, else nothing."""
        return self._utf8.decode(b"", final=True)


class TextStream:
    """The text of one completion: a Detokenizer, then stop strings. Joins to the text up to the first stop string.

    ``offset`` is where the next token's text begins, in characters of the completion as it would be without stop
    strings. Text of the first ``min_tokens`` tokens is not searched for stop strings.
    """

    def __init__(
        self,
        tokenizer: TokenTexts,
        *,
        prompt: Sequence[int] = (),
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        shown: Container[int] = (),
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt, shown)
        self._stop = StopStrings(stop)
        self._unsearched = min_tokens if stop else 0
        self.offset = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string came: the text is complete and no more tokens are wanted."""
        return self._stop.stopped

    def push(self, token: int) -> str:
        """The text that became certain with this token."""
        text = self._detokenizer.push(token)
        self.offset += len(text)
        if self._unsearched:
            self._unsearched -= 1
            return text
        return self._stop.push(text)

    def flush(self) -> str:
        """The rest, once no token follows; nothing after a stop string."""
        if self.stopped:
            return ""
        return self._stop.push(self._detokenizer.flush()) + self._stop.flush()


def _tail(tokenizer: TokenTexts, prompt: Sequence[int]) -> Sequence[int]:
    """The last tokens of ``prompt`` that decide how the next one is read: a UTF-8 character has at most 4 bytes, and
    its first byte is never mistaken for another."""
    size = 0
    for i in range(len(prompt) - 1, -1, -1):
        size += len(tokenizer.text_bytes(prompt[i]))
        if size >= 4:
            return prompt[i:]
    return prompt
