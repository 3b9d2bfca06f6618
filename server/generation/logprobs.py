"""Log-probabilities in OpenAI's shapes: of text completions, and of chat completions."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxgen.core.request import TokenLogprobs
from jaxgen.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def clamped(logprob: float) -> float:
    """As JSON can have it. Raises ValueError for NaN."""
    if logprob != logprob:
        raise ValueError("a log-probability is NaN")
    return max(logprob, LOWEST)


class Logprobs(Protocol):
    """Of the tokens of a choice, in order; ``offset`` is where a token's text begins in the choice's."""

    def append(self, tokenizer: Tokenizer, token: int, logprobs: TokenLogprobs | None, offset: int) -> None:
        """``logprobs`` None: of a prompt's first token, which follows nothing."""
        ...

    def begins_within(self, length: int) -> bool:
        """Whether ``take`` has something to give."""
        ...

    def take(self, length: int, *, ended: bool) -> dict[str, Any]:
        """Removes and returns, as JSON, the entries whose place in the text is certain: those that begin within its
        first ``length`` characters; all of them once it has ``ended``."""
        ...


@dataclass(slots=True)
class LogprobList:
    """Tokens in order, each with its log-probability, the best alternatives, and where its text begins, in characters
    of the choice's ``text``.

    A token's own entry is always among its alternatives. Alternatives with the same text count once, as the best.
    """

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def append(self, tokenizer: Tokenizer, token: int, logprobs: TokenLogprobs | None, offset: int) -> None:
        text = tokenizer.token_text(token)
        self.tokens.append(text)
        self.text_offset.append(offset)
        if logprobs is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        own = clamped(logprobs.logprob)
        top: dict[str, float] = {}
        for other, value in (*logprobs.top, (token, own)):
            top.setdefault(tokenizer.token_text(other), clamped(value))
        self.token_logprobs.append(own)
        self.top_logprobs.append(top)

    def begins_within(self, length: int) -> bool:
        return bool(self.text_offset) and self.text_offset[0] <= length

    def take(self, length: int, *, ended: bool) -> dict[str, Any]:
        """See Logprobs; the entries of a cut-off stop string begin at the text's end."""
        count = len(self.tokens) if ended else sum(offset <= length for offset in self.text_offset)
        taken = LogprobList(*(values[:count] for values in self._lists()))
        for values in self._lists():
            del values[:count]
        taken.text_offset = [min(offset, length) for offset in taken.text_offset]
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return dict(zip(names, taken._lists(), strict=True))

    def _lists(self) -> tuple[list[Any], ...]:
        return self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset


@dataclass(slots=True)
class ChatLogprobs:
    """Tokens in order, each an object with its text, its bytes, its log-probability and the best alternatives."""

    content: list[dict[str, Any]] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)

    def append(self, tokenizer: Tokenizer, token: int, logprobs: TokenLogprobs | None, offset: int) -> None:
        assert logprobs is not None, "a chat answer has no tokens of the prompt"
        top = [_entry(tokenizer, other, value) for other, value in logprobs.top]
        self.content.append({**_entry(tokenizer, token, logprobs.logprob), "top_logprobs": top})
        self._offsets.append(offset)

    def begins_within(self, length: int) -> bool:
        return bool(self._offsets) and self._offsets[0] <= length

    def take(self, length: int, *, ended: bool) -> dict[str, Any]:
        count = len(self.content) if ended else sum(offset <= length for offset in self._offsets)
        taken = self.content[:count]
        del self.content[:count], self._offsets[:count]
        return {"content": taken, "refusal": None}


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    """``bytes`` None: a special token, which has a name but no text."""
    exact = tokenizer.text_bytes(token)
    return {
        "token": tokenizer.token_text(token),
        "logprob": clamped(logprob),
        "bytes": list(exact) if exact else None,
    }


def prompt_logprobs_json(
    tokenizer: Tokenizer, known: Iterable[TokenLogprobs | None], count: int
) -> list[dict[str, Any] | None]:
    """Of each token of a prompt, in vLLM's shape: by token id, the token itself and its ``count`` best alternatives.

    ``rank`` 1 is the most probable; None: it is not among those looked at.
    """
    found: list[dict[str, Any] | None] = []
    for one in known:
        if one is None:
            found.append(None)
            continue
        ranks = {token: rank for rank, (token, _) in enumerate(one.top, 1)}
        listed = {one.token: one.logprob} | dict(one.top[:count])
        found.append(
            {
                str(token): {
                    "logprob": clamped(value),
                    "rank": ranks.get(token),
                    "decoded_token": tokenizer.token_text(token),
                }
                for token, value in listed.items()
            }
        )
    return found
