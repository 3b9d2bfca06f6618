"""The recipes of the goldens and their folders; what of the maker needs no torch."""

import json
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open

from scripts.make.goldens.mxfp4 import dequantize, quantize
from scripts.make.goldens.recipes.every import VARIANTS
from scripts.make.goldens.spelling import Spelling
from tests.support.goldens import GOLDENS, golden_answers, transformers_bfloat16

MOST_BYTES = 9 * 2**20


def tensor_names(name: str) -> set[str]:
    found: set[str] = set()
    for path in (GOLDENS / name).glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            found |= set(file.keys())
    return found


def test_each_recipe_has_its_folder_and_each_folder_its_recipe() -> None:
    assert {path.name for path in GOLDENS.iterdir()} == set(VARIANTS)


def test_goldens_are_small() -> None:
    assert sum(path.stat().st_size for path in GOLDENS.rglob("*") if path.is_file()) <= MOST_BYTES


@pytest.mark.parametrize("name", VARIANTS)
def test_folders_have_what_their_recipe_says(name: str) -> None:
    variant = VARIANTS[name]
    config = json.loads((GOLDENS / name / "config.json").read_text())
    assert config["architectures"] == [variant.architecture]
    answers = golden_answers(name)
    assert tuple(len(answer.prompt) for answer in answers) == variant.lengths
    for answer in answers:
        assert answer.logits.shape == (len(answer.rows), config.get("text_config", config)["vocab_size"])
        first = answer.logits[answer.rows == len(answer.prompt) - 1]
        assert first.argmax() == answer.greedy[0]
        assert np.isfinite(answer.logits).all()
        assert all(np.isfinite(one).all() for one in answer.pooled.values())
    assert 0 < transformers_bfloat16(name) < 0.2


def test_both_spellings_and_both_prefixes_are_there() -> None:
    configs = {name: json.loads((GOLDENS / name / "config.json").read_text()) for name in VARIANTS}
    assert any("rope_scaling" in config for config in configs.values())
    assert any("rope_parameters" in config for config in configs.values())
    old, new = configs["gemma3_wrapped_old"]["text_config"], configs["gemma3_wrapped"]["text_config"]
    assert {"rope_local_base_freq", "rope_scaling", "sliding_window_pattern"} <= set(old)
    assert not {"layer_types", "rope_parameters"} & set(old)
    assert {"layer_types", "rope_parameters"} <= set(new)
    for name, text, image in (
        ("gemma3_wrapped_old", "language_model.model.", "vision_tower."),
        ("gemma3_wrapped", "model.language_model.", "model.vision_tower."),
    ):
        assert {prefix for prefix in (text, image) if any(key.startswith(prefix) for key in tensor_names(name))} == {
            text,
            image,
        }


def test_old_spelling_of_ropes() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 5.0, "factor": 2.0}
    old = Spelling(old=True, kind="type", names={"rope_theta": "base"}, drop=("gone",))
    config = {"dtype": "float16", "gone": 1, "layer_types": ["full_attention"], "rope_parameters": rope}
    assert old.apply(config) == {
        "torch_dtype": "float16",
        "base": 5.0,
        "rope_scaling": {"type": "yarn", "factor": 2.0},
    }
    local = {"rope_type": "default", "rope_theta": 1.0}
    nested = {"dtype": "float16", "rope_parameters": {"full_attention": rope, "sliding_attention": local}}
    assert Spelling(old=True).apply({"dtype": "x", "text_config": nested}) == {
        "torch_dtype": "x",
        "text_config": {
            "rope_local_base_freq": 1.0,
            "rope_theta": 5.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
        },
    }


def nearest(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Of one group, number by number: the nearest of e2m1 times the power that leaves the largest between 4 and 8."""
    power = 2.0 ** (np.floor(np.log2(np.abs(weights).max())) - 2)
    numbers = [sign * size * power for sign, size in product((1, -1), (0, 0.5, 1, 1.5, 2, 3, 4, 6))]
    return np.array([min(numbers, key=lambda number: abs(number - weight)) for weight in weights.astype(np.float64)])


def test_mxfp4_is_the_nearest_and_is_found_again() -> None:
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((3, 5, 64)) * 2.0 ** rng.integers(-9, 9, (3, 5, 1))).astype(np.float32)
    blocks, scales = quantize(weights)
    assert (blocks.shape, scales.shape) == ((3, 5, 2, 16), (3, 5, 2))
    assert blocks.dtype == scales.dtype == np.dtype(np.uint8)
    found = dequantize(blocks, scales)
    np.testing.assert_array_equal(found.reshape(-1, 32), [nearest(group) for group in weights.reshape(-1, 32)])
    for one, again in zip((blocks, scales), quantize(found), strict=True):
        np.testing.assert_array_equal(one, again)


def test_mxfp4_has_the_first_number_in_the_low_bits() -> None:
    weights = np.zeros((1, 32), np.float32)
    weights[0, :3] = (6.0, -0.5, 4.0)
    blocks, scales = quantize(weights)
    assert blocks[0, 0, :2].tolist() == [0x97, 0x06]
    assert scales.tolist() == [[127]]
