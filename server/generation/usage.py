"""Count the tokens of an answer."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. A prompt counts once, however many choices it has; every generated token counts.

    ``cached_tokens``: prompt tokens whose keys and values were in the prefix cache when the first choice began.
    ``reasoning_tokens``: generated tokens of reasoning; None: the model's answers have none.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None

    def as_json(self) -> dict[str, Any]:
        reasoning = {"completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            **({} if self.reasoning_tokens is None else reasoning),
        }
