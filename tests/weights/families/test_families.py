"""Readers of config.json, family by family: wrong values get one error that names them, and nothing is ignored."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgen.core.decoder_config import DecoderConfig, llama_config
from jaxgen.core.decoder_parts import RopeConfig
from jaxgen.core.errors import ConfigError
from jaxgen.weights.families.parameters import parameters
from jaxgen.weights.families.registry import ARCHITECTURES, FAMILIES
from jaxgen.weights.families.row_orders import by_head, by_kv_head, interleaved_keys, interleaved_queries
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from tests.support.goldens import GOLDENS, NAMES, OF_FAMILIES

WRONG: tuple[Any, ...] = (-1, 0, 1.5, "x", True, [], {}, [1], {"rope_type": "x"}, 1009, float("nan"))


def config_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDENS / name / "config.json").read_text())
    return found


def read(directory: Path, config: dict[str, Any]) -> DecoderConfig:
    path = directory / "config.json"
    path.unlink(missing_ok=True)  # to write over a file that was just written waits for the disk
    path.write_text(json.dumps(config))
    found = read_model_config(ModelFiles(directory))
    assert isinstance(found, DecoderConfig)
    return found


def test_every_family_has_a_golden() -> None:
    served = {read_model_config(ModelFiles(GOLDENS / name)).family for name in NAMES}
    assert served == set(FAMILIES)
    recorded = {name for folder in NAMES for name in config_of(folder)["architectures"]}
    assert recorded >= set(ARCHITECTURES)


@pytest.mark.parametrize("name", ["qwen2_moe_window", "qwen3_moe_window", "qwen3_next"])
def test_layers_with_an_mlp_are_those_that_are_named_and_all_but_each_n_th(name: str, tmp_path: Path) -> None:
    changed = {"num_hidden_layers": 6, "layer_types": None, "decoder_sparse_step": 2, "mlp_only_layers": [3, 9]}
    assert read(tmp_path, config_of(name) | changed).dense_layers == (0, 2, 3, 4)
    assert read(tmp_path, config_of(name) | changed | {"decoder_sparse_step": 7}).moe is None


# Other goldens of a family have the same fields, with other values.
@pytest.mark.parametrize("name", OF_FAMILIES)
def test_no_wrong_value_of_a_field_ends_in_another_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written once: to write all its thousands of contents would take most of the time."""
    config = config_of(name)
    read(tmp_path, config)
    monkeypatch.setattr("jaxgen.weights.files.members._read", lambda *_: json.loads(json.dumps(config)))
    taken = tried = 0
    for inner in (config, config.get("text_config") or {}):
        for field, right in list(inner.items()):
            for inner[field] in WRONG:
                tried += 1
                with suppress(ConfigError):
                    assert parameters(read_model_config(ModelFiles(tmp_path)))
                    taken += 1
            inner[field] = right
    assert 0 < taken < tried


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_nobody_knows_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    inner = config.get("text_config") or config
    inner["use_something_new"] = 3
    with pytest.raises(ConfigError, match="use_something_new is 3, which"):
        read(tmp_path, config)
    inner["use_something_new"] = False
    read(tmp_path, config)


@pytest.mark.parametrize("name", [name for name in NAMES if "layer_types" in config_of(name)])
def test_a_list_of_the_wrong_length_says_both_lengths(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    layers, config["layer_types"] = len(config["layer_types"]), config["layer_types"][:1]
    with pytest.raises(ConfigError, match=f"layer_types has 1 entries, but num_hidden_layers is {layers}"):
        read(tmp_path, config)


@pytest.mark.parametrize("name", ["gemma3", "mistral_window"])
def test_a_window_beyond_any_context_is_none(name: str, tmp_path: Path) -> None:
    """Its number would not fit programs' 32 bits."""
    assert read(tmp_path, config_of(name) | {"sliding_window": 2**30}).windows
    assert read(tmp_path, config_of(name) | {"sliding_window": 2**31}).windows == ()


def test_an_mlp_that_lfm2_adjusts_to_nothing_is_refused(tmp_path: Path) -> None:
    config = config_of("lfm2") | {"block_ff_dim": 1}
    with pytest.raises(ConfigError, match=r"intermediate_size \(1\) is too small: block_auto_adjust_ff_dim makes 0"):
        read(tmp_path, config)
    assert read(tmp_path, config | {"block_auto_adjust_ff_dim": False}).intermediate_size == 1


SIZES = {
    "vocab_size": 64,
    "hidden_size": 512,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
}

DENSE = {"num_local_experts": 0, "layer_types": ["attention"] * 4}
"""What Granite 4 must say to be a model of attention and plain MLPs."""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_local_experts": None}, "num_local_experts is 8: experts next to a shared MLP are not supported, only 0"),
        ({"num_local_experts": 64}, "num_local_experts is 64: experts next to"),
        ({"layer_types": None}, "layer_types has mamba; supported in this family: attention"),
        ({"layer_types": ["attention", "mamba"] * 2}, "layer_types has mamba; supported in this family"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'; it must be rope, nope or null"),
        ({"normalization_function": "layernorm"}, "normalization_function 'layernorm' is not supported"),
    ],
)
def test_what_granite_4_may_have_and_is_not_computed_is_named(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    given = SIZES | DENSE | {"architectures": ["GraniteMoeHybridForCausalLM"]}
    assert read(tmp_path, given).positions.ropes == ()
    assert read(tmp_path, given | {"shared_intermediate_size": 112}).intermediate_size == 112
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, given | change)


def shape(heads: int, kv_heads: int, head_dim: int, rotary_dim: int | None) -> DecoderConfig:
    return llama_config(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=8,
        dtype="float32",
        norm_eps=1e-5,
        rope=RopeConfig(rotary_dim=rotary_dim),
    )


def test_rows_of_heads_become_queries_keys_and_values() -> None:
    """Rows are labelled by what they are, head and number."""
    alone = [(part, h, d) for h in range(4) for part in "qkv" for d in range(3)]
    order = by_head(shape(4, 4, 3, None))
    assert [alone[row] for row in order] == [(part, h, d) for part in "qkv" for h in range(4) for d in range(3)]
    groups = [row for k in range(2) for row in [("q", 2 * k), ("q", 2 * k + 1), ("k", k), ("v", k)]]
    grouped = [(*row, d) for row in groups for d in range(3)]
    order = by_kv_head(shape(4, 2, 3, None))
    wanted = [("q", h, d) for h in range(4) for d in range(3)]
    wanted += [(part, k, d) for part in "kv" for k in range(2) for d in range(3)]
    assert [grouped[row] for row in order] == wanted


def test_neighbouring_pairs_become_pairs_of_halves() -> None:
    config = shape(2, 1, 6, 4)
    assert interleaved_queries(config) == (0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11)
    assert interleaved_keys(config) == (0, 2, 1, 3, 4, 5)
    assert np.array_equal(np.sort(interleaved_queries(config)), np.arange(12))
