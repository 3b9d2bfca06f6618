"""Every field that transformers' class of a family has means here what it means there: its default, and that it counts.

Derived from the classes and from the recipes of the goldens: a family is listed nowhere.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig
from jaxgen.weights.families.registry import ARCHITECTURES
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import IGNORED, read_model_config
from scripts.make.goldens.recipes.every import VARIANTS
from scripts.make.goldens.variant import merged

KINDS = {one: kind for kind, one in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if one in ARCHITECTURES}
"""The ``model_type`` of transformers' configuration of each architecture."""


SERVED: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "Glm4MoeForCausalLM": {"head_dim": 128},
    "Dots1ForCausalLM": {
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "max_window_layers": 31,
    },
    "Ernie4_5_MoeForCausalLM": {"moe_layer_end_index": 20},
    "Gemma4ForCausalLM": {"num_kv_shared_layers": 12},
    "Gemma4UnifiedForCausalLM": {"num_kv_shared_layers": 12},
    "GraniteMoeHybridForCausalLM": {"num_local_experts": 0, "layer_types": ["attention"] * 32},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"] * 16, "intermediate_size": 12_600},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 16},
}
"""Fields that a file must have because the class's defaults are of a model that is not served, or would not show what
others mean."""


def read(directory: Path, data: Mapping[str, Any]) -> ModelConfig:
    path = directory / "config.json"
    path.unlink(missing_ok=True)  # to write over a file that was just written waits for the disk
    path.write_text(json.dumps(data))
    return read_model_config(ModelFiles(directory))


def described(directory: Path, data: Mapping[str, Any]) -> ModelConfig | None:
    """The description, or None if it is refused."""
    try:
        return read(directory, data)
    except ConfigError:
        return None


def of_class(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers saves of a model with these settings."""
    settings = SERVED.get(architecture, {}) | dict(settings)
    saved: dict[str, Any] = CONFIG_MAPPING[KINDS[architecture]](**settings).to_dict()
    return saved | {"architectures": [architecture]}


def least(directory: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Of what was saved, the fields that a file must have."""
    found = {"architectures": saved["architectures"]} | SERVED.get(saved["architectures"][0], {})
    while True:
        try:
            read(directory, found)
        except ConfigError as error:
            said = str(error).removeprefix(f"{directory}/config.json: ")
            name, missing, _ = said.partition(" is missing; it must be ")
            assert missing, said
            found[name] = saved[name]
        else:
            return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_absent_fields_have_the_defaults_of_transformers(architecture: str, tmp_path: Path) -> None:
    saved = of_class(architecture, {})
    assert read(tmp_path, least(tmp_path, saved)) == read(tmp_path, saved)


OTHERS: dict[type, Any] = {
    bool: lambda on: not on,
    int: lambda n: 2 * n,
    float: lambda x: 2 * x,
    str: lambda _: "other",
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_field_of_another_value_means_another_model_or_is_refused(architecture: str, tmp_path: Path) -> None:
    """Otherwise it belongs to ``ignored``, where one reads that it changes nothing."""
    known = {*IGNORED, *ARCHITECTURES[architecture].ignored, *SERVED.get(architecture, ())}
    contrasts = (
        one for variant in VARIANTS.values() if variant.architecture == architecture for one in variant.contrasts
    )
    shown = {name for contrast in contrasts for name in contrast}  # some count only beside others
    saved = of_class(architecture, {})
    before = read(tmp_path, saved)
    changed = {
        name: saved | {name: OTHERS[type(value)](value)}
        for name, value in saved.items()
        if type(value) in OTHERS and name not in known | shown and not name.startswith("_")
    }
    assert [name for name, data in changed.items() if described(tmp_path, data) == before] == []


@pytest.mark.parametrize("name", [name for name in VARIANTS if "text_config" not in VARIANTS[name].settings])
def test_what_changes_the_logits_changes_the_description_or_is_refused(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    before = read(tmp_path, of_class(variant.architecture, variant.settings))
    for contrast in variant.contrasts:
        changed = of_class(variant.architecture, merged(variant.settings, contrast))
        assert described(tmp_path, changed) != before, contrast
