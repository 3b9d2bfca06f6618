"""Files of random weights in the benchmarks' shapes are models of these shapes, as jaxgen's reader finds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgen.weights.families.parameters import parameters
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.model import opened
from jaxgen.weights.huggingface.config import read_model_config
from scripts.loads.shapes import CONFIGS
from scripts.make.random_gguf import write
from tests.support.hub_configs import read

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
SMALL: dict[str, dict[str, Any]] = {
    "1b": SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 2},
    "qwen3-0.6b": SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32, "layer_types": None},
    "lfm2.5-1.2b": SIZES
    | {"num_hidden_layers": 3, "num_key_value_heads": 2, "full_attn_idxs": [2], "block_auto_adjust_ff_dim": False}
    | {"block_ff_dim": 96},
    "qwen3.5-0.8b": SIZES
    | {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 32}
    | {"layer_types": CONFIGS["qwen3.5-0.8b"]["layer_types"][:4], "linear_num_key_heads": 2}
    | {"linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "glm-4.7-flash-small": SIZES
    | {"num_hidden_layers": 2, "num_key_value_heads": 4, "kv_lora_rank": 64, "q_lora_rank": 32, "v_head_dim": 32}
    | {"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "moe_intermediate_size": 32},
}


@pytest.mark.parametrize("shape", SMALL)
def test_a_file_has_the_shape(shape: str, tmp_path: Path) -> None:
    config, file = CONFIGS[shape] | SMALL[shape], tmp_path / "model.gguf"
    write(file, config, "Q4_0")
    with opened(file) as (directory, tensors):
        found = read_model_config(ModelFiles(directory))
        tensors.check(parameters(found))
    assert found == replace(read(config), max_position=8192)


def test_types_are_those_of_llama_quantize(tmp_path: Path) -> None:
    """The output layer has more bits, and so have some others of Q4_K_M; blocks of 256 do not fill narrow rows."""
    narrow, untied = SMALL["glm-4.7-flash-small"], CONFIGS["glm-4.7-flash-small"]
    write(tmp_path / "a", CONFIGS["1b"] | SMALL["1b"] | {"hidden_size": 256}, "Q4_K_M")
    write(tmp_path / "b", untied | narrow, "Q4_0")
    tied, untied = (GgufFile(tmp_path / name).tensors for name in "ab")
    assert tied["token_embd.weight"].kind.name == "Q6_K"
    assert tied["blk.0.attn_q.weight"].kind.name == "Q4_K"
    assert tied["blk.0.ffn_down.weight"].kind.name == "Q5_0"
    assert untied["output.weight"].kind.name == "Q8_0"
    assert untied["token_embd.weight"].kind.name == untied["blk.1.ffn_up_exps.weight"].kind.name == "Q4_0"
    assert untied["blk.1.ffn_gate_inp.weight"].kind.name == "F32"


def test_numbers_spread_as_those_of_a_new_model(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", CONFIGS["qwen3.5-0.8b"] | SMALL["qwen3.5-0.8b"], "Q8_0")
    stored = GgufFile(tmp_path / "model.gguf").tensors
    matrix, decays = (
        np.asarray(stored[f"blk.0.{name}"].dequantised(np.float32)) for name in ("ffn_up.weight", "ssm_a")
    )
    assert 0.4 < 64**0.5 * matrix.std() < 1.2
    assert np.all(np.less(decays, 0))
