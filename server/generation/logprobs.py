"""Write log-probabilities in OpenAI's formats for text completions and for chat completions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from jaxgen.core.request import TokenLogprobs
from jaxgen.server.errors import bad_request
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


@dataclass(frozen=True, slots=True)
class LazyList[Item]:
    """A list of an answer whose entries are made while it is encoded: as JSON they take many times more memory."""

    items: Sequence[Item]
    make: Callable[[Item], Any]

    def entries(self, start: int, stop: int) -> list[Any]:
        """Return some of the entries."""
        return [*map(self.make, self.items[start:stop])]


class LogprobQuota:
    """Limit of the log-probabilities that the choices of a request may keep until they are sent."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def check(self, entries: int) -> None:
        """Raise ApiError 400 if ``entries`` are too many."""
        if entries > self._most:
            raise bad_request(
                f"logprobs: more than {self._most} log-probabilities would wait to be sent (--max-logprob-entries): "
                "ask for fewer alternatives, tokens or choices, or stream the answer and read it as it comes.",
                "logprobs",
            )

    def take(self, entries: int) -> None:
        """Take room for some more, or give it back if negative. Raises ApiError 400 where there is none."""
        self.check(self._taken + entries)
        self._taken += entries


class AnswerToken(NamedTuple):
    """A token of an answer. ``logprobs`` None: the first token of a prompt, which has no context. ``offset``: where its
    text begins in the choice's, in characters."""

    token: int
    logprobs: TokenLogprobs | None
    offset: int


class Logprobs(ABC):
    """Log-probabilities of a choice's tokens, in order. ``as_ids``: tokens are shown by their ids."""

    def __init__(self, tokenizer: Tokenizer, quota: "LogprobQuota", *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._quota = quota
        self._as_ids = as_ids
        self._tokens: list[AnswerToken] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, token: int, logprobs: TokenLogprobs | None, offset: int) -> None:
        """Add a token; see Told. Raises ValueError where a number is NaN, and ApiError where there is no room."""
        if logprobs is not None:
            self._quota.take(1 + len(logprobs.top))
            clamped(logprobs.logprob + sum(value for _, value in logprobs.top))  # NaN if one of them is
        self._tokens.append(AnswerToken(token, logprobs, offset))

    def begins_within(self, length: int) -> bool:
        """Whether ``take`` would return an entry."""
        return bool(self._tokens) and self._tokens[0].offset <= length

    def take(self, length: int, *, ended: bool) -> dict[str, Any]:
        """Remove and return, as JSON, the entries whose offset is certain: they begin within the first ``length``
        characters of the text. Return all entries once it has ``ended``."""
        entries = self.take_later(length, ended=ended)
        return {
            name: entry.entries(0, len(entry.items)) if isinstance(entry, LazyList) else entry
            for name, entry in entries.items()
        }

    def take_later(self, length: int, *, ended: bool) -> dict[str, Any]:
        """Do as ``take``, with lists that are made while they are encoded."""
        count = len(self._tokens) if ended else sum(token.offset <= length for token in self._tokens)
        taken = self._tokens[:count]
        del self._tokens[:count]
        self._quota.take(-sum(1 + len(token.logprobs.top) for token in taken if token.logprobs is not None))
        return self._lists(taken, length)

    @abstractmethod
    def _lists(self, taken: Sequence[AnswerToken], length: int, /) -> dict[str, Any]:
        """Return the fields of the answer. ``length``: of its text so far."""

    def _shown(self, token: int) -> str:
        return shown(self._tokenizer, token, as_id=self._as_ids)


class LogprobList(Logprobs):
    """Log-probabilities of text completions: lists of tokens, their log-probabilities, their best alternatives and
    their offsets.

    A token's own entry is always among its alternatives. Of alternatives with the same text, the best one is listed.
    """

    def _lists(self, taken: Sequence[AnswerToken], length: int) -> dict[str, Any]:
        """See Logprobs. Tokens of a stop string, which is cut off, begin at the end of the text."""
        return {
            "tokens": LazyList(taken, lambda token: self._shown(token.token)),
            "token_logprobs": LazyList(taken, lambda token: token.logprobs and clamped(token.logprobs.logprob)),
            "top_logprobs": LazyList(taken, self._top),
            "text_offset": LazyList(taken, lambda token: min(token.offset, length)),
        }

    def _top(self, entry: AnswerToken) -> dict[str, float] | None:
        if entry.logprobs is None:
            return None
        top: dict[str, float] = {}
        for other, value in (*entry.logprobs.top, (entry.token, entry.logprobs.logprob)):
            top.setdefault(self._shown(other), clamped(value))
        return top


class ChatLogprobs(Logprobs):
    """Log-probabilities of chat completions: each token an object with its text, its bytes, its log-probability and the
    best alternatives."""

    def _lists(self, taken: Sequence[AnswerToken], _length: int) -> dict[str, Any]:
        return {"content": LazyList(taken, self._content), "refusal": None}

    def _content(self, entry: AnswerToken) -> dict[str, Any]:
        assert entry.logprobs is not None, "a chat answer has no tokens of the prompt"
        top = [self._entry(other, value) for other, value in entry.logprobs.top]
        return {**self._entry(entry.token, entry.logprobs.logprob), "top_logprobs": top}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        """Return the entry of one token. ``bytes`` None: a special token, which has a name but no text."""
        exact = self._tokenizer.text_bytes(token)
        return {"token": self._shown(token), "logprob": clamped(logprob), "bytes": list(exact) if exact else None}


def prompt_logprobs_json(
    tokenizer: Tokenizer, known: Sequence[TokenLogprobs | None], count: int
) -> LazyList[TokenLogprobs | None]:
    """Return an object for each token of a prompt, in vLLM's format: by token id, the token and ``count`` alternatives.

    ``rank`` 1 is the most probable token of the whole vocabulary.
    """
    return LazyList(known, partial(_of_prompt, tokenizer, count))


def _of_prompt(tokenizer: Tokenizer, count: int, logprobs: TokenLogprobs | None) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    top = tuple(logprobs.top)
    ranks = {token: rank for rank, (token, _) in enumerate(top, 1)} | {logprobs.token: logprobs.rank}
    listed = {logprobs.token: logprobs.logprob} | dict(top[:count])
    return {
        str(token): {"logprob": clamped(value), "rank": ranks[token], "decoded_token": tokenizer.token_text(token)}
        for token, value in listed.items()
    }
