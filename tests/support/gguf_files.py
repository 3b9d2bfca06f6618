"""GGUF files of Hugging Face directories, by the gguf package's writer and tables of our own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers

F32 = Kind.F32
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

SANDWICH = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
NORMS = {
    "gemma": ("input", "post_attention", "pre_feedforward", "post_feedforward"),
    "": ("input", "post_attention"),
}


def names(layers: int, family: str) -> dict[str, str]:
    """Hugging Face's name of every tensor that a model may have, to that in a GGUF file."""
    table = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for i in range(layers):
        hf, own = f"model.layers.{i}", f"blk.{i}"
        for letter in "qkv":
            table[f"{hf}.self_attn.{letter}_proj"] = f"{own}.attn_{letter}"
        for letter in "qk":
            table[f"{hf}.self_attn.{letter}_norm"] = f"{own}.attn_{letter}_norm"
        table[f"{hf}.self_attn.qkv_proj"] = f"{own}.attn_qkv"
        table[f"{hf}.self_attn.o_proj"] = f"{own}.attn_output"
        for word in ("gate", "up", "down"):
            table[f"{hf}.mlp.{word}_proj"] = f"{own}.ffn_{word}"
        table[f"{hf}.mlp.gate_up_proj"] = f"{own}.ffn_up"
        sandwich = family.startswith("gemma")
        norms = zip(
            NORMS["gemma" if sandwich else ""], SANDWICH if sandwich else ("attn_norm", "ffn_norm"), strict=True
        )
        table |= {f"{hf}.{word}_layernorm": f"{own}.{name}" for word, name in norms}
    return {f"{hf}.{part}": f"{name}.{part}" for hf, name in table.items() for part in ("weight", "bias")}


def neighbours(heads: int, rows: int) -> list[int]:
    """For each row of a llama file the row of the checkpoint: pairs that rotate together become neighbours."""
    size = rows // heads
    order = []
    for head in range(heads):
        for pair in range(size // 2):
            order += [head * size + pair, head * size + pair + size // 2]
    return order


def load(source: Path) -> dict[str, npt.NDArray[np.float32]]:
    """All tensors of a Hugging Face directory, in float32."""
    return {
        name: values.astype(np.float32)
        for file in sorted(source.glob("*.safetensors"))
        for name, values in load_file(file).items()
    }


def rounded(tensors: Mapping[str, npt.NDArray[np.float32]], kind: Kind) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors as a file has them whose matrices are of a type."""
    return {
        name: values if values.ndim == 1 else gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        for name, values in tensors.items()
    }


def save_rounded(source: Path, destination: Path, kind: Kind, dtype: str) -> Path:
    """A Hugging Face directory with these tensors in float32, whose configuration names ``dtype``."""
    destination.mkdir()
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    (destination / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
    save_file(rounded(load(source), kind), destination / "model.safetensors", metadata={"format": "pt"})
    return destination


def write(
    path: Path, source: Path, family: str, *, kind: Kind = F32, without: tuple[str, ...] = (), **options: Any
) -> Path:
    """Write the model of a Hugging Face directory. ``without``: tensors of the file that are left out.

    Further options: ``vocabulary`` as for ``add_vocabulary``, ``metadata``: more fields; None: fewer; ``split``: the
    number of tensors in each of several parts; ``kinds``: of single tensors, in place of ``kind``.
    """
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(path, family, split_max_tensors=options.get("split", 0))
    fields = describe(config, family) | options.get("metadata", {})
    for name, value in fields.items():
        add(
            writer,
            name if "." in name and name.split(".")[0] in ("general", "tokenizer") else f"{family}.{name}",
            value,
        )
    add_vocabulary(writer, **(options.get("vocabulary") or letters(config["vocab_size"])))
    table = names(config["num_hidden_layers"], family)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for hf_name, stored in load(source).items():
        name, values, module = table[hf_name], stored, hf_name.split(".")[-2]
        if name in without:
            continue
        if family == "llama" and module in heads:
            values = np.ascontiguousarray(values[neighbours(heads[module], len(values))])
        if family.startswith("gemma") and module.endswith("norm"):
            values = values + np.float32(1)
        as_kind = F32 if values.ndim == 1 else options.get("kinds", {}).get(name, kind)
        writer.add_tensor(name, gguf.quants.quantize(values, as_kind), raw_dtype=as_kind)
    for name, values in options.get("more", {}).items():
        writer.add_tensor(name, values)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    """The metadata of a configuration, but for what scales its rotary embedding."""
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    theta, share = rope.get("rope_theta", config.get("rope_theta")), rope.get("partial_rotary_factor", 1.0)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    window = config.get("sliding_window")
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(theta),
        "rope.dimension_count": int(head_dim * config.get("partial_rotary_factor", share)),
        "attention.sliding_window": (window or 0) if family == "phi3" or family.startswith("gemma") else None,
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
    }


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif value is not None:
        writer.add_array(name, value)


def letters(size: int) -> dict[str, Any]:
    """A vocabulary for models that have none: some bytes, and a token of two."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())[: size - 1]
    return {"tokens": [*tokens, tokens[0] + tokens[1]], "merges": [f"{tokens[0]} {tokens[1]}"], "pre": "gpt-2"}


def byte_level(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    """The vocabulary of a byte-level tokenizer, as llama.cpp's converter writes one."""
    model = json.loads(tokenizer.to_str())["model"]
    return _of(tokenizer) | {"merges": [" ".join(merge) for merge in model["merges"]], "pre": pre}


def sentencepiece(tokenizer: Tokenizer) -> dict[str, Any]:
    """The vocabulary of a tokenizer with byte fallback: scores are ranks of merges, and bytes are marked."""
    found = _of(tokenizer)
    merges = ["".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    scores = {token: -float(rank) for rank, token in reversed(list(enumerate(merges)))}
    kinds = [BYTE if token.startswith("<0x") else kind for token, kind in zip(*found.values(), strict=True)]
    kinds[0] = UNKNOWN
    return {
        "model": "llama",
        "tokens": found["tokens"],
        "kinds": kinds,
        "scores": [scores.get(token, -1000.0) for token in found["tokens"]],
    }


def _of(tokenizer: Tokenizer) -> dict[str, Any]:
    tokens = {i: token for token, i in tokenizer.get_vocab(with_added_tokens=True).items()}
    added = tokenizer.get_added_tokens_decoder()
    kinds = [
        (CONTROL if added[i].special else USER_DEFINED) if i in added else NORMAL if i in tokens else UNUSED
        for i in range(max(tokens) + 1)
    ]
    return {"tokens": [tokens.get(i, f"[PAD{i}]") for i in range(max(tokens) + 1)], "kinds": kinds}


def add_vocabulary(
    writer: gguf.GGUFWriter,
    tokens: list[str],
    *,
    model: str = "gpt2",
    pre: str | None = None,
    kinds: list[int] | None = None,
    merges: list[str] | None = None,
    scores: list[float] | None = None,
) -> None:
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds or [NORMAL] * len(tokens))
    if model != "llama":
        writer.add_token_merges(merges or [])
    if scores is not None:
        writer.add_token_scores(scores)
