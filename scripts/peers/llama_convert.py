"""``-m scripts.peers.llama_convert SOURCE DESTINATION``: a Hugging Face directory of a Llama as a GGUF file.

Runs in llama.cpp's environment. Norms are float32, which llama.cpp wants; all else keeps its dtype. The vocabulary is
not the checkpoint's: token i is written " t<i>", so that every token is a chunk of a stream and can be told from an
answer's text.
"""

import json
import sys
from pathlib import Path

import gguf
import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main() -> None:
    source, destination = map(Path, sys.argv[1:])
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(destination, "llama")
    describe(writer, config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    kind = gguf.GGMLQuantizationType.BF16 if config["dtype"] == "bfloat16" else gguf.GGMLQuantizationType.F32
    for name, tensor in load_file(source / "model.safetensors").items():
        values = tensor.astype(np.float32)
        projection = name.split(".")[-2]
        if projection in heads:
            values = interleaved(values, heads[projection])
        stored = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(writer: gguf.GGUFWriter, config: dict[str, int]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(dict(config["rope_parameters"])["rope_theta"])  # type: ignore[call-overload]
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    size = config["vocab_size"]
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"\u2581t{token}" for token in range(size)])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in TENSORS:
        return f"{TENSORS[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{TENSORS[rest]}.weight"


def interleaved(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head in GGUF's order: it rotates neighbours, a Hugging Face checkpoint rotates halves."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


if __name__ == "__main__":
    main()
