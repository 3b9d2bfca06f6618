"""``-m scripts.peers.llama_convert SOURCE DESTINATION [SPLITTING]``: a Hugging Face directory as a GGUF file.

Runs in llama.cpp's environment. Reads a Llama, a Qwen3 or a Gemma 3. Norms are float32, which llama.cpp wants; all else
keeps its dtype. With SPLITTING, llama.cpp's name of how texts are split, the file has the checkpoint's vocabulary.
Without it token i is written " t<i>", so that every token is a chunk of a stream and can be told from an answer's text.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

DEFAULT_THETA = 10_000.0
"""Of a configuration that names none."""
TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names in a checkpoint and in a file, of all architectures."""
TWO_NORMS = {"post_attention_layernorm": "ffn_norm"}
FOUR_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OF_HEADS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


@dataclass(frozen=True)
class Architecture:
    """``tensors``: further names. ``neighbours``: a file rotates neighbours, where a checkpoint rotates halves.

    ``norm_offset``: a file's norms are the checkpoint's and this.
    """

    name: str
    tensors: Mapping[str, str]
    neighbours: bool = False
    norm_offset: float = 0.0


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture("llama", TWO_NORMS, neighbours=True),
    "Qwen3ForCausalLM": Architecture("qwen3", TWO_NORMS | OF_HEADS),
    "Gemma3ForCausalLM": Architecture("gemma3", FOUR_NORMS | OF_HEADS, norm_offset=1.0),
}


def main() -> None:
    source, destination, *splitting = sys.argv[1:]
    write(Path(source), Path(destination), splitting[0] if splitting else None)


def write(source: Path, destination: Path, splitting: str | None) -> None:
    config = json.loads((source / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(destination, architecture.name)
    describe(writer, config)
    if splitting is None:
        write_numbers(writer, config["vocab_size"])
    else:
        write_vocabulary(writer, json.loads((source / "tokenizer.json").read_text()), config["vocab_size"], splitting)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = {**TENSORS, **architecture.tensors}
    kind = gguf.GGMLQuantizationType.BF16 if config["dtype"] == "bfloat16" else gguf.GGMLQuantizationType.F32
    for name, tensor in load_file(source / "model.safetensors").items():
        values = tensor.astype(np.float32)
        projection = name.split(".")[-2]
        if architecture.neighbours and projection in heads:
            values = interleaved(values, heads[projection])
        if projection.endswith("norm"):
            values = values + np.float32(architecture.norm_offset)
        stored = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(gguf_name(name, names), gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", DEFAULT_THETA))
    writer.add_rope_dimension_count(head_dim)
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def write_numbers(writer: gguf.GGUFWriter, size: int) -> None:
    """Write a vocabulary of token ids."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"\u2581t{token}" for token in range(size)])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([gguf.TokenType.NORMAL] * size)


def write_vocabulary(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], size: int, splitting: str) -> None:
    """Write a byte-level vocabulary, filled up to ``size`` with tokens that are not used."""
    added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    known = {i: token for token, i in tokenizer["model"]["vocab"].items()} | added
    kind = gguf.TokenType
    kinds = [kind.CONTROL if i in added else kind.NORMAL if i in known else kind.UNUSED for i in range(size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list([known.get(i, f"[PAD{i}]") for i in range(size)])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])


def gguf_name(name: str, names: Mapping[str, str]) -> str:
    stem = name.removesuffix(".weight")
    if stem in names:
        return f"{names[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{names[rest]}.weight"


def interleaved(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head in GGUF's order: it rotates neighbours, a Hugging Face checkpoint rotates halves."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


if __name__ == "__main__":
    main()
