"""Names of the files of a model, and what they say. Host only, no jax."""

import re
from pathlib import Path

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
    gguf = next((file for file in sorted(directory.iterdir()) if is_gguf(file)), None)
    if gguf is not None:
        return f", but a GGUF file: name that, as --model {gguf}"
    if (directory / _ADAPTER).exists():
        return ", but a LoRA adapter: merge it into its model first, and name the result"
    return ""


def gguf_parts(name: str) -> list[str]:
    """Return the files of a GGUF model in parts, of which ``name`` is one, in their order; of another, itself."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return [name]
    return [f"{match[1]}-{number:05}-of-{match[3]}{match[4]}" for number in range(1, int(match[3]) + 1)]
