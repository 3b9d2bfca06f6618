"""Facts about a model that callers need: its sizes, its chat format and its embeddings."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from jaxgen.core.sampling_params import NEUTRAL, SamplingDefaults


class Pooling(StrEnum):
    """A way to make a prompt's embedding from its final hidden states: their mean, the last token's, or the first's."""

    MEAN = "mean"
    LAST = "last"
    CLS = "cls"


PoolingChoice = Literal["auto", "mean", "last", "cls"]
"""auto: the model's own pooling."""


POOLING_CHOICES: tuple[PoolingChoice, ...] = ("auto", "mean", "last", "cls")


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A way to turn conversations into text: a Jinja template, and the special tokens that it may name (bos_token,
    ...).

    ``tool_template``: the template for conversations with tools, if it is a different one.
    """

    template: str
    special_tokens: dict[str, str]
    tool_template: str | None = None

    def template_for(self, *, tools: bool) -> str:
        return self.tool_template or self.template if tools else self.template


@dataclass(frozen=True, slots=True)
class EmbeddingFormat:
    """Format of a model's embeddings: ``size`` numbers, pooled as the model was made for."""

    size: int
    pooling: Pooling


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about the model that a server or library front end needs to check a request. ``note``: a note to users.

    ``chat`` None: the model was not made for conversations, or does not name their format. ``embedding`` None: the
    model gives no embeddings. ``defaults``: of what a request leaves out. ``embedded``: whether it is the toy that is
    served where no model is named. ``generates``: whether it continues texts; one without a head is for embeddings.
    """

    name: str
    max_model_len: int
    vocab_size: int
    note: str = ""
    chat: ChatFormat | None = None
    embedding: EmbeddingFormat | None = None
    defaults: SamplingDefaults = NEUTRAL
    embedded: bool = False
    generates: bool = True
