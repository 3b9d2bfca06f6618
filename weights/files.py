"""Files of a checkpoint directory: which may be opened, and reading JSON. Host only, no jax."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from jaxgen.core.errors import ConfigError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
)
MODULES = "modules.json"
POOLING_FILES = (MODULES, "1_Pooling/config.json")
"""As sentence-transformers writes them."""
CARRIED_FILES = (CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES, *POOLING_FILES)
"""What a model is beside its weights, as far as the directory has it."""


def member(directory: Path, name: str) -> Path:
    """The file ``name`` of a checkpoint directory, which need not exist.

    ``name`` is relative and has no ``..``, and links do not lead out of the directory; in a snapshot of the hub's cache
    they may lead to that repository's ``blobs``, where the cache keeps the contents. ConfigError otherwise.
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise ConfigError(f"{directory}: the file name {name!r} leads out of the directory; it must be a plain name")
    path = directory / name
    root = directory.resolve()
    target = path.resolve()
    inside = target.is_relative_to(root)
    if not inside and root.parent.name == "snapshots":
        inside = target.is_relative_to(root.parent.parent / "blobs")
    if not inside:
        raise ConfigError(f"{path} is a link out of the directory, to {target}; copy the file into the directory")
    return path


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of the directory; ConfigError when it is missing or is none."""
    data = _read(directory, name)
    if not isinstance(data, dict):
        raise ConfigError(f"{directory / name} must hold a JSON object, not {type(data).__name__}")
    return data


def read_json_list(directory: Path, name: str) -> list[Any]:
    """The JSON array in a file of the directory; ConfigError when it is missing or is none."""
    data = _read(directory, name)
    if not isinstance(data, list):
        raise ConfigError(f"{directory / name} must hold a JSON array, not {type(data).__name__}")
    return data


def _read(directory: Path, name: str) -> Any:
    path = member(directory, name)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
