"""Make tests/data/compressed_tensors: a small weight in each format of compressed-tensors, as that tool writes it.

Not part of the tests, since it needs torch: it runs in an environment of its own,

    pip install torch==2.13.0+cpu compressed-tensors==0.20.0

(the first from the index of torch's CPU builds), as ``python -m scripts.make.compressed_weights``. A file has the
tensors of one linear layer, and in its metadata the ``quantization_config``, and the dtype and SHA-256 of the weight
that the tool makes of them again. The weight has outliers in some of its inputs.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from compressed_tensors.compressors.base import BaseCompressor  # type: ignore[import-not-found, unused-ignore]
from compressed_tensors.quantization import (  # type: ignore[import-not-found, unused-ignore]
    QuantizationConfig,
    QuantizationScheme,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import (  # type: ignore[import-not-found, unused-ignore]
    calculate_qparams,
    generate_gparam,
)
from safetensors.torch import save_file

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "compressed_tensors"
OUTPUTS, INPUTS = 24, 256
FORMATS = {
    "W4A16": "pack-quantized",
    "W4A16_ASYM": "pack-quantized",
    "W8A16": "pack-quantized",
    "W8A8": "int-quantized",
    "FP8": "float-quantized",
    "FP8_DYNAMIC": "float-quantized",
    "FP8_BLOCK": "float-quantized",
    "MXFP8": "mxfp8-quantized",
    "NVFP4": "nvfp4-pack-quantized",
    "MXFP4": "mxfp4-pack-quantized",
}
"""The format of each of the tool's schemes."""


def main() -> None:
    """Make all files."""
    FOLDER.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    weight = 0.05 * torch.randn(OUTPUTS, INPUTS, generator=generator)
    weight[:, [3, 77, 200]] *= 20
    for name, format_name in FORMATS.items():
        scheme = preset_name_to_scheme(name, ["Linear"])
        tensors, dequantized = written(weight.to(torch.bfloat16), scheme, format_name)
        config = QuantizationConfig(
            config_groups={"group_0": scheme}, format=format_name, ignore=["lm_head"], quantization_status="compressed"
        )
        about = {
            "quantization_config": json.dumps(config.to_dict(), default=str),
            "dtype": str(dequantized.dtype).removeprefix("torch."),
            "sha256": hashlib.sha256(dequantized.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest(),
        }
        save_file(
            {f"linear.{part}": one.contiguous() for part, one in tensors.items()}, FOLDER / f"{name}.safetensors", about
        )


def written(weight: Any, scheme: QuantizationScheme, format_name: str) -> tuple[dict[str, Any], Any]:
    """Return the tensors that the tool writes of a weight, and the weight that it makes of them again."""
    args = scheme.weights
    lowest, highest = (reduced(weight, args) for reduced in (_lowest, _highest))
    state: dict[str, Any] = {"weight": weight}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = generate_gparam(weight.min().float(), weight.max().float()).reshape(1)
    scale, zero = calculate_qparams(lowest, highest, args, state.get("weight_global_scale"))
    state |= {"weight_scale": scale, "weight_zero_point": zero}
    if scheme.input_activations is not None and scheme.input_activations.dynamic is False:
        state["input_scale"] = torch.full((1,), 0.02)
    compressor = BaseCompressor.get_value_from_registry(format_name)
    tensors = compressor.compress(state, scheme)
    return tensors, compressor.decompress(tensors, scheme)["weight"]


def _lowest(weight: Any, args: Any) -> Any:
    return -_highest(-weight, args)


def _highest(weight: Any, args: Any) -> Any:
    """Return the greatest number of each part of a weight that shares a scale."""
    if args.strategy == "tensor":
        return weight.max().reshape(1)
    if args.strategy == "channel":
        return weight.amax(dim=1, keepdim=True)
    if args.strategy == "block":
        outputs, inputs = args.block_structure
        rows = [part.split(inputs, dim=1) for part in weight.split(outputs)]
        return torch.stack([torch.stack([block.max() for block in row]) for row in rows])
    return weight.reshape(len(weight), -1, args.group_size).amax(dim=-1)


if __name__ == "__main__":
    main()
