"""Engines that take conversations with tools and answer with a text that is given."""

from functools import cache
from typing import Any

from tokenizers import AddedToken

from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.harmony import NAMES
from jaxgen.server.tool_calls.thinking import CHANNEL_MARKS, THINK_MARKS
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers
from tests.support.fakes import MODEL, FakeEngine, says
from tests.support.server_app import BYTE_TOKENS
from tests.support.tool_templates import BY_FORMAT

HARMONY = "openai"


def markers_of(kind: str) -> tuple[str, ...]:
    return (*(NAMES if kind == HARMONY else FORMATS[kind].markers), *THINK_MARKS.tokens, *CHANNEL_MARKS.tokens)


@cache
def marked_tokenizer(special: bool) -> Tokenizer:
    """In which the markers of all formats are tokens of their own, ``special`` ones or others."""
    backend = tiny_tokenizers.byte_level()
    markers = sorted({marker for kind in (*FORMATS, HARMONY) for marker in markers_of(kind)})
    backend.add_tokens([AddedToken(marker, special=special) for marker in markers])
    return Tokenizer(backend)


def tokens_of(text: str, kind: str, tokenizer: Tokenizer) -> list[int]:
    """One for each byte, but that markers of the format are what they are in the tokenizer."""
    markers = {tokenizer.added_token(marker) for marker in markers_of(kind)}
    tokens: list[int] = []
    for token in tokenizer.encode(text):
        tokens += [token] if token in markers else [BYTE_TOKENS[bytes([one])] for one in tokenizer.text_bytes(token)]
    return tokens


def tool_engine(
    kind: str, text: str, *, special: bool = True, template: str | None = None, **fields: Any
) -> FakeEngine:
    """Its text comes byte by byte, markers as what they are in the tokenizer."""
    tokenizer = marked_tokenizer(special)
    chat = ChatFormat(BY_FORMAT[kind] if template is None else template, {})
    model = ModelInfo(MODEL, max_model_len=20_000, vocab_size=500, chat=chat)
    reply = says(tokens_of(text, kind, tokenizer))
    return FakeEngine(**{"tokenizer": tokenizer, "reply": reply, "model": model, **fields})


def prompt_of(engine: FakeEngine) -> str:
    """The last one, with special tokens."""
    return "".join(map(engine.tokenizer.token_text, engine.requests[-1].prompt))
