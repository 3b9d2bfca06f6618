"""Gated delta nets in few bits, as files have them: the projections stay codes, and what is small stays numbers."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgen.core.mixed_weight import AnyWeight
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import Quantization, WeightFormat
from jaxgen.weights.load import load_model_config, load_params
from tests.support.format_cases import EVERY
from tests.support.quantised_cases import Made
from tests.support.quantised_checkpoints import FLOAT8, Tensors, quantised_pair

KEPT = ("attention.attn.qkv", "attention.attn.out", "delta.delta.in_proj", "delta.delta.out")


def loaded(directory: Path, quantization: Quantization) -> tuple[ModelConfig, dict[str, Any]]:
    config = load_model_config(directory, quantization=quantization)
    return config, load_params(directory, config, place=lambda _, value: value, progress=False)


def with_images_and_drafts(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """As the makers' files in FP8 have it: the text inside a model of images, and what drafts tokens in FP8 too."""
    inner = {name.replace("model.", "model.language_model.", 1): one for name, one in tensors.items()}
    draft, images = "mtp.layers.0.mlp.up_proj.weight", "model.visual.merger.mlp.0.weight"
    others = {draft: np.ones((16, 48), FLOAT8), f"{draft}_scale_inv": np.ones((1, 1), np.float32)}
    outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "vision_config": {"depth": 2}}
    about = {"quantization_config": config.pop("quantization_config")}
    return inner | others | {images: np.ones((2, 2), np.float32)}, outer | about | {"text_config": config}


@pytest.mark.parametrize(
    ("golden", "case", "quantization"),
    [
        ("qwen3_5", "fp8 block", "fp8"),
        ("qwen3_5", "awq", "none"),
        ("qwen3_5_moe", "compressed nvfp4", "fp4"),
        ("qwen3_next", "fp8 block", "fp8"),
        ("qwen3_next", "packed", "none"),
    ],
)
def test_projections_stay_codes(
    golden: str, case: str, quantization: Quantization, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the first case as the makers' files are."""
    about, encode, form = EVERY[case]
    official = (golden, case) == ("qwen3_5", "fp8 block")

    def of_mixers(name: str, shape: tuple[int, int]) -> Made | None:
        return None if ".mlp." in name else encode(name, shape)

    packed, plain = quantised_pair(tmp_path, golden, about, of_mixers, *([with_images_and_drafts] if official else []))
    with caplog.at_level(logging.INFO):
        config, params = loaded(packed, quantization)
    assert ("text does not need it: mtp, visual" in caplog.text) == official
    numbers = loaded(plain, "none")[1]
    for path, value in params.items():
        same = value.dequantized() if isinstance(value, AnyWeight) else value
        np.testing.assert_array_equal(same, numbers[path], err_msg=path)
    for name in KEPT:
        found = config.weight_format(f"layers.{name}.weight")
        assert isinstance(found, WeightFormat)
        assert (found.bits, found.floats, found.zeros) == (form.bits, form.floats, form.zeros)
    assert config.weight_format("layers.delta.delta.gates.weight") is None
