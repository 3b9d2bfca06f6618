"""The chat template of a model directory."""

import json
from pathlib import Path
from typing import Any

from jaxgen.config import ConfigError
from jaxgen.request import ChatFormat

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


def read_chat_format(directory: Path, template: Path | None = None) -> ChatFormat | None:
    """How the model is spoken to: ``template``, else chat_template.jinja, else what tokenizer_config.json has; None if
    there is none of them. Raises ConfigError that names a file that cannot be read."""
    config = _read_config(directory / TOKENIZER_CONFIG)
    tokens = {name: _text_of(config[name]) for name in _TOKENS if config.get(name) is not None}
    if template is not None:
        return ChatFormat(_read_text(template), tokens)
    beside = directory / TEMPLATE_FILE
    text = _read_text(beside) if beside.is_file() else _in_config(config.get("chat_template"))
    return None if text is None else ChatFormat(text, tokens)


def _in_config(found: Any) -> str | None:
    """A text, or a list of named ones, of which the default serves."""
    if isinstance(found, list):
        found = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}.get("default")
    return found if isinstance(found, str) else None


def _text_of(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(_read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template or its tokens cannot be read from {path}: {error}") from error
