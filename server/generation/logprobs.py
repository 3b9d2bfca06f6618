"""Write log-probabilities in OpenAI's formats for text completions and for chat completions."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxgen.core.request import TokenLogprobs
from jaxgen.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def shown(tokenizer: Tokenizer, token: int, *, as_id: bool) -> str:
    """Return a token as an answer shows it: its text or, ``as_id``, vLLM's ``token_id:5``, which tells all apart."""
    return f"token_id:{token}" if as_id else tokenizer.token_text(token)


def clamped(logprob: float) -> float:
    """Return a log-probability that JSON can represent. Raises ValueError for NaN."""
    if logprob != logprob:
        raise ValueError("a log-probability is NaN")
    return max(logprob, LOWEST)


class Logprobs(Protocol):
    """Log-probabilities of a choice's tokens, in order. ``offset``: where a token's text begins in the choice's."""

    def __len__(self) -> int:
        """Return the number of entries."""
        ...

    def append(self, tokenizer: Tokenizer, token: int, logprobs: TokenLogprobs | None, offset: int) -> None:
        """Add a token. ``logprobs`` None: the first token of a prompt, which has no context."""
        ...

    def begins_within(self, length: int) -> bool:
        """Whether ``take`` would return an entry."""
        ...

    def take(self, length: int, *, ended: bool) -> dict[str, Any]:
        """Remove and return, as JSON, the entries whose offset is certain: those that begin within the first ``length``
        characters of the text. Return all entries once it has ``ended``."""
        ...


@dataclass(slots=True)
class LogprobList:
    """Tokens in order, each with its log-probability, its best alternatives and its offset in the choice's ``text``, in
    characters.

    A token's own entry is always among its alternatives. Of alternatives with the same text, the best one is listed.
    ``as_ids``: tokens are shown by their ids.
    """

    as_ids: bool = False
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, tokenizer: Tokenizer, token: int, logprobs: TokenLogprobs | None, offset: int) -> None:
        self.tokens.append(shown(tokenizer, token, as_id=self.as_ids))
        self.text_offset.append(offset)
        if logprobs is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        own = clamped(logprobs.logprob)
        top: dict[str, float] = {}
        for other, value in (*logprobs.top, (token, own)):
            top.setdefault(shown(tokenizer, other, as_id=self.as_ids), clamped(value))
        self.token_logprobs.append(own)
        self.top_logprobs.append(top)

    def begins_within(self, length: int) -> bool:
        return bool(self.text_offset) and self.text_offset[0] <= length

    def take(self, length: int, *, ended: bool) -> dict[str, Any]:
        """See Logprobs. Tokens of a stop string, which is cut off, begin at the end of the text."""
        count = len(self.tokens) if ended else sum(offset <= length for offset in self.text_offset)
        taken = LogprobList(self.as_ids, *(values[:count] for values in self._lists()))
        for values in self._lists():
            del values[:count]
        taken.text_offset = [min(offset, length) for offset in taken.text_offset]
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return dict(zip(names, taken._lists(), strict=True))

    def _lists(self) -> tuple[list[Any], ...]:
        return self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset


@dataclass(slots=True)
class ChatLogprobs:
    """Tokens in order, each an object with its text, its bytes, its log-probability and the best alternatives.

    ``as_ids``: tokens are shown by their ids.
    """

    as_ids: bool = False
    content: list[dict[str, Any]] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.content)

    def append(self, tokenizer: Tokenizer, token: int, logprobs: TokenLogprobs | None, offset: int) -> None:
        assert logprobs is not None, "a chat answer has no tokens of the prompt"
        top = [self._entry(tokenizer, other, value) for other, value in logprobs.top]
        self.content.append({**self._entry(tokenizer, token, logprobs.logprob), "top_logprobs": top})
        self._offsets.append(offset)

    def begins_within(self, length: int) -> bool:
        return bool(self._offsets) and self._offsets[0] <= length

    def take(self, length: int, *, ended: bool) -> dict[str, Any]:
        count = len(self.content) if ended else sum(offset <= length for offset in self._offsets)
        taken = self.content[:count]
        del self.content[:count], self._offsets[:count]
        return {"content": taken, "refusal": None}

    def _entry(self, tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
        """Return the entry of one token. ``bytes`` None: a special token, which has a name but no text."""
        exact = tokenizer.text_bytes(token)
        return {
            "token": shown(tokenizer, token, as_id=self.as_ids),
            "logprob": clamped(logprob),
            "bytes": list(exact) if exact else None,
        }


def prompt_logprobs_json(
    tokenizer: Tokenizer, known: Iterable[TokenLogprobs | None], count: int
) -> list[dict[str, Any] | None]:
    """Return an object for each token of a prompt, in vLLM's format: by token id, the token and ``count`` alternatives.

    ``rank`` 1 is the most probable token of the whole vocabulary.
    """
    found: list[dict[str, Any] | None] = []
    for one in known:
        if one is None:
            found.append(None)
            continue
        ranks = {token: rank for rank, (token, _) in enumerate(one.top, 1)} | {one.token: one.rank}
        listed = {one.token: one.logprob} | dict(one.top[:count])
        found.append(
            {
                str(token): {
                    "logprob": clamped(value),
                    "rank": ranks[token],
                    "decoded_token": tokenizer.token_text(token),
                }
                for token, value in listed.items()
            }
        )
    return found
