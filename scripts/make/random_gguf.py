"""Write a GGUF file of random weights in a shape that the benchmarks use, to be served here and by llama.cpp.

.venv/bin/python -m scripts.make.random_gguf --shape 1b --type Q4_K_M /tmp/1b-q4_k_m.gguf
.venv/bin/jaxgen convert-weights /tmp/1b-q4_k_m.gguf /tmp/1b-q4_k_m

Matrices are random blocks of their type, whose floats are such that numbers spread as those of a new model. A file has
one type, but Q4_K_M and Q4_0, of which llama-quantize makes the head Q6_K, and in Q4_K_M also values and down
projections of some layers. Token i is written " t<i>".
"""

import argparse
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind

from scripts.loads.shapes import CONFIGS, Config
from scripts.make.gguf_shapes import FLOATS, described, is_described, metadata, tensors
from scripts.peers.llama_convert import write_numbers

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
NARROW = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What llama-quantize takes for rows that blocks of 256 do not fill."""
CONTEXT = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--shape", choices=[name for name, config in CONFIGS.items() if is_described(config)], default="1b"
    )
    parser.add_argument("--type", choices=(*HALVES, *MIXED), default="Q4_K_M")
    args = parser.parse_args()
    write(args.file, CONFIGS[args.shape], args.type)


def write(file: Path, config: Config, file_type: str) -> None:
    """Write the file of a shape, which is given by the fields of config.json."""
    writer = gguf.GGUFWriter(file, described(config).name)
    for key, value in metadata(config, CONTEXT).items():
        add(writer, f"{writer.arch}.{key}", value)
    write_numbers(writer, config["vocab_size"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    rng = np.random.default_rng(0)
    sizes = tensors(config)
    for name, size in sizes.items():
        if len(size) == 1:
            writer.add_tensor(name, np.full(size, -1 if name.endswith("ssm_a") else 1, np.float32))
        elif name.endswith(FLOATS):
            writer.add_tensor(name, rng.standard_normal(size, np.float32) * np.float32(size[-1] ** -0.5))
        else:
            kind = kind_of(file_type, name, config["num_hidden_layers"], "output.weight" in sizes)
            kind = kind if size[-1] % gguf.GGML_QUANT_SIZES[Kind[kind]][0] == 0 else NARROW[kind]
            writer.add_tensor(name, blocks(rng, kind, size), raw_dtype=Kind[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: gguf.GGUFWriter, key: str, value: bool | int | float | list[int]) -> None:
    """Add a number, or a list of them, in the type that llama.cpp reads."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case _:
            writer.add_array(key, value)


def kind_of(file_type: str, name: str, layers: int, has_head: bool) -> str:
    """Return the type that llama-quantize gives a tensor of a file, with a head or with a tied embedding."""
    if name == ("output.weight" if has_head else "token_embd.weight") and file_type != "Q8_0":
        return "Q6_K"
    if file_type != "Q4_K_M":
        return file_type
    if not any(part in name for part in ("attn_v", "ffn_down")):
        return "Q4_K"
    layer, eighth = int(name.split(".")[1]), layers // 8
    more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if more else "Q4_K"


def blocks(rng: np.random.Generator, kind: str, size: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return random blocks of matrices [..., out, in], as bytes [..., out, bytes of a row]."""
    of_block, num_bytes = gguf.GGML_QUANT_SIZES[Kind[kind]]
    result = rng.integers(0, 256, (*size[:-1], size[-1] // of_block, num_bytes), dtype=np.uint8)
    for place, sign in zip(HALVES[kind], (1, 1 if kind.endswith("_K") else -8), strict=False):
        drawn = rng.uniform(0.5, 1, result.shape[:-1]) * size[-1] ** -0.5 / LARGEST[kind]
        result[..., place : place + 2] = (sign * drawn).astype(np.float16)[..., None].view(np.uint8)
    return result.reshape(*size[:-1], -1)


if __name__ == "__main__":
    main()
