"""Checkpoints of models too large to make: true configurations and headers, and holes in place of the weights."""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "tie_word_embeddings": False,
}
LLAMA_70B_PARAMETERS = 2 * 128256 * 8192 + 80 * (2 * 8192 * (8192 + 1024) + 3 * 8192 * 28672 + 2 * 8192) + 8192
"""70.55 B: embedding and head, and in each layer attention, MLP and two norms."""
_BYTES = 2


def make_llama(directory: Path, config: dict[str, Any], *, num_files: int = 30) -> Path:
    """Write a Llama checkpoint in bfloat16 whose files take no space."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = list(llama_tensors(config))
    names = [f"model-{number + 1:05}-of-{num_files:05}.safetensors" for number in range(num_files)]
    shards = {name: dict(tensors[number::num_files]) for number, name in enumerate(names)}
    for name, shapes in shards.items():
        write_sparse(directory / name, shapes)
    weight_map = {tensor: name for name, shapes in shards.items() for tensor in shapes}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def llama_tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of a Llama checkpoint, as transformers saves them."""
    width, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (vocab, width)
    for layer in range(config["num_hidden_layers"]):
        here = f"model.layers.{layer}"
        for name, rows in (("q", width), ("k", kv), ("v", kv), ("o", width)):
            yield f"{here}.self_attn.{name}_proj.weight", (rows, width)
        for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
            yield f"{here}.mlp.{name}_proj.weight", shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{here}.{name}.weight", (width,)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (vocab, width)


def write_sparse(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a safetensors file with these tensors in bfloat16, and a hole in place of their bytes."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = prod(shape) * _BYTES
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (end, end + size)}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
