"""Open files of a checkpoint directory safely, and read JSON. Host only, no jax."""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.core.text_files import read_text

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
QUANTIZATION_FILES = {"quantize_config.json": "gptq", "hf_quant_config.json": "modelopt"}
"""Files in which AutoGPTQ and ModelOpt described their checkpoints before config.json did, and the method of each."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
)
_ADAPTER = "adapter_config.json"
MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
SENTENCE_CONFIG = "sentence_bert_config.json"
SENTENCE_FILES = (MODULES, POOLING, SENTENCE_CONFIG, "config_sentence_transformers.json")
"""Files in which sentence-transformers writes how a model's embeddings are made."""
CARRIED_FILES = (CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES, *SENTENCE_FILES)
"""Files of a model other than its weights; a directory may lack some of them."""

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)
GGUF_MAGIC = b"GGUF"
"""How a file of llama.cpp's format begins."""
_LONGEST = 2**26
"""Longest JSON file that is read, bytes; tokenizers and indices of the largest models have half."""


def named_gguf(name: str) -> bool:
    """Whether the name is that of a file of llama.cpp's format."""
    return name.lower().endswith(".gguf")


def is_gguf(path: Path) -> bool:
    """Whether a file is of llama.cpp's format, by its name or by its beginning: blobs of caches have names of their
    own."""
    if not path.is_file():
        return False
    if named_gguf(path.name):
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:  # what reads it says why
        return False


def model_hint(directory: Path) -> str:
    """Return what to add to an error about a directory that has no model, but something like it; empty: it has not."""
    found = next((file for file in sorted(directory.iterdir()) if is_gguf(file)), None)
    if found is not None:
        return f", but a GGUF file: name that, as --model {found}"
    if (directory / _ADAPTER).exists():
        return ", but a LoRA adapter: merge it into its model first, and name the result"
    return ""


def gguf_parts(name: str) -> list[str]:
    """Return the files of a GGUF model in parts, of which ``name`` is one, in their order; of another, itself."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return [name]
    return [f"{match[1]}-{one:05}-of-{match[3]}{match[4]}" for one in range(1, int(match[3]) + 1)]


def member(directory: Path, name: str) -> Path:
    """Return the path of the file ``name`` in a checkpoint directory; the file need not exist.

    Raises ConfigError unless ``name`` is relative without ``..`` and links stay within the directory. In a snapshot of
    the hub's cache links may lead to the repository's ``blobs``, where the cache keeps the contents.
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
    """Read the JSON object in a file of the directory. Raises ConfigError when it is missing or not an object."""
    data = _read(directory, name)
    if not isinstance(data, dict):
        raise ConfigError(f"{directory / name} must hold a JSON object, not {type(data).__name__}")
    return data


def read_json_list(directory: Path, name: str) -> list[Any]:
    """Read the JSON array in a file of the directory. Raises ConfigError when it is missing or not an array."""
    data = _read(directory, name)
    if not isinstance(data, list):
        raise ConfigError(f"{directory / name} must hold a JSON array, not {type(data).__name__}")
    return data


def _read(directory: Path, name: str) -> Any:
    path = member(directory, name)
    try:
        if (size := path.stat().st_size) > _LONGEST:
            raise ConfigError(f"{path} has {size} bytes; such a file has {_LONGEST} at most")
        return json.loads(read_text(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError:  # which is a ValueError
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
