"""Write a GGUF file of random weights in a shape that the benchmarks use, to be served here and by llama.cpp.

.venv/bin/python -m scripts.make.random_gguf --shape 1b --type Q4_K_M /tmp/1b-q4_k_m.gguf
.venv/bin/jaxgen convert-weights /tmp/1b-q4_k_m.gguf /tmp/1b-q4_k_m

Matrices are random blocks of their type, whose floats are such that numbers spread as those of a new model. A file has
one type, but Q4_K_M and Q4_0, of which llama-quantize makes the tied embedding Q6_K, and in Q4_K_M also values and
down projections of some layers.
"""

import argparse
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind

from scripts.loads.shapes import SHAPES
from scripts.peers.llama_convert import describe

HALVES: dict[str, tuple[int, ...]] = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q5_0": (0,),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
}
"""Places of the floats in a block: the scale, and what its minimums are multiplied by."""
LARGEST = {"Q8_0": 128, "Q4_0": 8, "Q5_0": 16, "Q6_K": 32 * 64, "Q4_1": 8, "Q5_1": 16, "Q4_K": 8 * 32, "Q5_K": 16 * 32}
"""Of what a scale multiplies, nearly."""
MIXED = ("Q4_K_M",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--type", choices=(*HALVES, *MIXED), default="Q4_K_M")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    writer = gguf.GGUFWriter(args.file, "llama")
    config: dict[str, Any] = {
        "max_position_embeddings": 4096,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_parameters": {"rope_theta": 10000.0},
    }
    describe(writer, config)
    rng = np.random.default_rng(0)
    for name, size in tensors(shape.num_layers, config).items():
        if len(size) == 1:
            writer.add_tensor(name, np.ones(size, np.float32))
            continue
        kind = kind_of(args.type, name, shape.num_layers)
        writer.add_tensor(name, blocks(rng, kind, size), raw_dtype=Kind[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(layers: int, config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shape [out, in] of each tensor; embedding and head are one."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    result: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config["vocab_size"], width),
        "output_norm.weight": (width,),
    }
    of_layer = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (kv, width)}
    of_layer |= {"attn_v": (kv, width), "attn_output": (width, width), "ffn_down": (width, inner)}
    of_layer |= {"ffn_gate": (inner, width), "ffn_up": (inner, width)}
    for layer in range(layers):
        result |= {f"blk.{layer}.{name}.weight": size for name, size in of_layer.items()}
    return result


def kind_of(file_type: str, name: str, layers: int) -> str:
    """Return the type that llama-quantize gives a tensor of a file with a tied embedding."""
    if name == "token_embd.weight" and file_type != "Q8_0":
        return "Q6_K"
    if file_type != "Q4_K_M":
        return file_type
    if not any(part in name for part in ("attn_v", "ffn_down")):
        return "Q4_K"
    layer, eighth = int(name.split(".")[1]), layers // 8
    more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if more else "Q4_K"


def blocks(rng: np.random.Generator, kind: str, size: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return random blocks of a matrix [out, in], as bytes [out, bytes of a row]."""
    of_block, num_bytes = gguf.GGML_QUANT_SIZES[Kind[kind]]
    result = rng.integers(0, 256, (size[0], size[1] // of_block, num_bytes), dtype=np.uint8)
    for place, sign in zip(HALVES[kind], (1, 1 if kind.endswith("_K") else -8), strict=False):
        drawn = rng.uniform(0.5, 1, result.shape[:-1]) * size[1] ** -0.5 / LARGEST[kind]
        result[..., place : place + 2] = (sign * drawn).astype(np.float16)[..., None].view(np.uint8)
    return result.reshape(size[0], -1)


if __name__ == "__main__":
    main()
