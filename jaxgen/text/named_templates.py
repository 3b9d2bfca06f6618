"""The chat templates that ship with jaxgen, for models that have none. Host only, no jax."""

from pathlib import Path

from jaxgen.core.model_info import ChatFormat
from jaxgen.text.tokenizer import Tokenizer

_FOLDER = Path(__file__).parent / "templates"

_END_OF_TURN = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "plain": None}
"""The token with which the assistant ends its turn in each; None: the model's own end of a text."""

TEMPLATE_NAMES = tuple(_END_OF_TURN)


def template_text(name: str) -> str:
    """Return the template of one of TEMPLATE_NAMES."""
    return (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def named_format(name: str, tokenizer: Tokenizer) -> ChatFormat:
    """Return the format of one of TEMPLATE_NAMES for this tokenizer: a conversation begins as its texts begin."""
    return format_of(template_text(name), tokenizer)


def format_of(template: str, tokenizer: Tokenizer) -> ChatFormat:
    """Return the format of a template that was not made for this tokenizer, of which it may name the BOS token."""
    added = tokenizer.encode("")
    return ChatFormat(template, {"bos_token": tokenizer.token_text(added[0])} if added else {})


def end_of_turn(name: str) -> str | None:
    """Return the text of the token that ends a turn in the template of this name; None: it has none, or is a file."""
    return _END_OF_TURN.get(name)
