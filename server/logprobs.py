"""Log-probabilities in OpenAI's completions shape."""

from dataclasses import dataclass, field
from typing import Any

from jaxgen.request import TokenLogprobs
from jaxgen.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


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
        """``logprobs`` None: of a prompt's first token, which follows nothing."""
        text = tokenizer.token_text(token)
        self.tokens.append(text)
        self.text_offset.append(offset)
        if logprobs is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        own = max(logprobs.logprob, LOWEST)
        top: dict[str, float] = {}
        for other, value in (*logprobs.top, (token, own)):
            top.setdefault(tokenizer.token_text(other), max(value, LOWEST))
        self.token_logprobs.append(own)
        self.top_logprobs.append(top)

    def begins_within(self, length: int) -> bool:
        return bool(self.text_offset) and self.text_offset[0] <= length

    def take(self, length: int, *, ended: bool) -> "LogprobList":
        """Removes and returns the entries whose place in the text is certain: those that begin within its first
        ``length`` characters; all of them once it has ``ended``, those of a cut-off stop string then at its end."""
        count = len(self.tokens) if ended else sum(offset <= length for offset in self.text_offset)
        taken = LogprobList(*(values[:count] for values in self._lists()))
        for values in self._lists():
            del values[:count]
        taken.text_offset = [min(offset, length) for offset in taken.text_offset]
        return taken

    def as_json(self) -> dict[str, Any]:
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return dict(zip(names, self._lists(), strict=True))

    def _lists(self) -> tuple[list[Any], ...]:
        return self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset
