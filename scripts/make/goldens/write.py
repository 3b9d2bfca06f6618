"""Write a checkpoint as a hub has it, and see that transformers reads from it the model that was meant."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
import transformers
from safetensors.torch import load_file, save_file  # type: ignore[import-not-found, unused-ignore]
from transformers.utils.quantization_config import Mxfp4Config

from scripts.make.goldens.model import EXPERTS, forward
from scripts.make.goldens.mxfp4 import quantize
from scripts.make.goldens.narrow import bfloat16_error
from scripts.make.goldens.record import Answer, arrays
from scripts.make.goldens.variant import Tensors, Variant


def write(directory: Path, variant: Variant, model: Any, answers: list[Answer]) -> None:
    """Write the folder again, with the answers of transformers."""
    shutil.rmtree(directory, ignore_errors=True)
    experts = packed_experts(model) if variant.mxfp4 else {}
    model.to(getattr(torch, variant.dtype)).save_pretrained(directory, max_shard_size=variant.shard_size)
    (directory / "generation_config.json").unlink(missing_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps(variant.spelling.apply(json.loads(path.read_text())), indent=2) + "\n")
    if variant.rewrite or experts:
        rewrite(directory / "model.safetensors", variant, experts)
    check(directory, variant, answers[-1])
    longest = max(answers, key=lambda answer: len(answer.prompt))
    narrow = bfloat16_error(directory, variant, longest.computed, longest.rows, longest.seen.logits[longest.rows])
    np.savez_compressed(directory / "golden.npz", **arrays(answers), bfloat16=narrow)


def rewrite(path: Path, variant: Variant, experts: Tensors) -> None:
    """Give tensors the hub's names; put packed experts in the place of plain ones."""
    tensors = load_file(path)
    if variant.rewrite:
        tensors = variant.rewrite(tensors)
    if experts:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(EXPERTS)} | experts
    save_file(tensors, path, {"format": "pt"})


def packed_experts(model: Any) -> Tensors:
    """Return blocks and scales of the experts of gpt-oss, whose rows are outputs."""
    result: Tensors = {}
    for name, parameter in model.named_parameters():
        if name.endswith(EXPERTS):
            blocks, scales = quantize(parameter.detach().transpose(1, 2).contiguous().numpy())
            result |= {f"{name}_blocks": torch.from_numpy(blocks), f"{name}_scales": torch.from_numpy(scales)}
    return result


def check(directory: Path, variant: Variant, answer: Answer) -> None:
    """Raise AssertionError unless transformers computes the same logits from the files."""
    more: dict[str, Any] = {}
    if variant.mxfp4:
        more["quantization_config"] = Mxfp4Config(dequantize=True)
    model = getattr(transformers, variant.architecture).from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", **more
    )
    difference = answer.error(forward(model.eval(), answer.computed))
    assert difference < 1e-5, f"{directory.name}: read again, logits differ by {difference:.1e}"
