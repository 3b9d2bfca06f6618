"""What callers must know of a model: its sizes, its chat format and its embeddings."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    pass


class Pooling(StrEnum):
    """What of a prompt's final hidden states is its embedding: their mean, that of its last token, or of its first."""

    MEAN = "mean"
    LAST = "last"
    CLS = "cls"


PoolingChoice = Literal["auto", "mean", "last", "cls"]
"""auto: as the model says."""


POOLING_CHOICES: tuple[PoolingChoice, ...] = ("auto", "mean", "last", "cls")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How conversations become text: a Jinja template, and the special tokens that it may name (bos_token, ...).

    ``tool_template``: the one for conversations with tools, where that is another.
    """

    template: str
    special_tokens: dict[str, str]
    tool_template: str | None = None

    def template_for(self, *, tools: bool) -> str:
        return self.tool_template or self.template if tools else self.template


@dataclass(frozen=True, slots=True)
class EmbeddingFormat:
    """What the embeddings of a model are: ``size`` numbers, pooled in the way that it was made for."""

    size: int
    pooling: Pooling


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a face must know of the model to check a request; ``note``: what its users should be told of it.

    ``chat`` None: it was not made for conversations, or does not say how they are written. ``embedding`` None: it gives
    none.
    """

    name: str
    max_model_len: int
    vocab_size: int
    note: str = ""
    chat: ChatFormat | None = None
    embedding: EmbeddingFormat | None = None
