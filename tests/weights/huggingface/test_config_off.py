"""A field of config.json that is off asks for nothing, unless transformers has it on: then it is known, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from jaxgen.core.errors import ConfigError
from jaxgen.weights.families.registry import ARCHITECTURES, FAMILIES
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from jaxgen.weights.summary import summarize
from tests.support.goldens import copy_golden
from tests.support.hub_configs import HUB, described
from tests.weights.huggingface.test_defaults import SERVED

TYPES = [(one, kind) for kind, one in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if one in ARCHITECTURES]
"""Served architectures, and the ``model_type`` of transformers' configuration of each."""
OFF: tuple[Any, ...] = (None, False, 0, "", [], {})


def write(directory: Path, data: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(data))
    return directory


def unknown(directory: Path, data: dict[str, Any]) -> list[str]:
    """Return the fields that are on and that a reader does not know."""
    found: list[str] = []
    while True:
        try:
            read_model_config(ModelFiles(write(directory, data)))
        except ConfigError as error:
            said = str(error).removeprefix(f"{directory}/config.json: ")
            assert "does not know" in said
            found.append(said.partition(" ")[0])
            del data[found[-1]]
        else:
            return found


def test_every_architecture_has_its_configuration_in_transformers() -> None:
    assert {name for name, _ in TYPES} == set(ARCHITECTURES)


@pytest.mark.parametrize(("architecture", "kind"), TYPES, ids=[kind for _, kind in TYPES])
def test_what_transformers_has_on_is_known(tmp_path: Path, architecture: str, kind: str) -> None:
    """Otherwise a file that has it off would be read as one that does not name it."""
    on = {name: value for name, value in CONFIG_MAPPING[kind]().to_dict().items() if value not in OFF}
    on = on.get("text_config", on)  # of a model of more than text
    if architecture in ("GptOssForCausalLM", "Ministral3ForCausalLM"):
        assert on["rope_parameters"], "they must say how positions rotate"
    assert unknown(tmp_path, on | SERVED.get(architecture, {}) | {"architectures": [architecture]}) == []


def test_an_unknown_field_that_is_on_would_be_found(tmp_path: Path) -> None:
    data = HUB["Qwen3-0.6B"].config | {"use_other_layers": True, "other_scale": 2.0}
    assert unknown(tmp_path, data) == ["other_scale", "use_other_layers"]


@pytest.mark.parametrize("name", FAMILIES)
def test_attention_in_both_directions_is_refused_in_each_family(tmp_path: Path, name: str) -> None:
    """transformers reads ``is_causal`` for every decoder, and no class of configurations has it as a field."""
    data = next(HUB[one].config for one in HUB if described(one).family == name)
    assert read_model_config(ModelFiles(write(tmp_path, data | {"is_causal": True})))
    assert read_model_config(ModelFiles(write(tmp_path, data | {"is_causal": None})))
    for off in (False, 0):
        with pytest.raises(ConfigError) as refused:
            read_model_config(ModelFiles(write(tmp_path, data | {"is_causal": off})))
        assert str(refused.value).startswith(f"{tmp_path}/config.json: ")
        assert str(refused.value).endswith(
            f"is_causal {off!r} is not supported, only True: attention in both directions is not computed: take a "
            "model with causal attention"
        )


def test_also_of_the_text_of_a_model_of_more_than_text(tmp_path: Path) -> None:
    directory = copy_golden("gemma3_wrapped", tmp_path / "model")
    data = json.loads((directory / "config.json").read_text())
    for inside in (True, False):
        text = data["text_config"] | ({"is_causal": False} if inside else {})
        write(directory, data | {"text_config": text} | ({} if inside else {"is_causal": False}))
        assert "is_causal False is not supported" in summarize(directory).problem


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ({"AutoModel": "modeling_qwen.Qwen2Model"}, "modeling_qwen.Qwen2Model"),
        ({"AutoConfig": "a.B", "AutoModelForCausalLM": "x.X", "AutoModel": "x.Y"}, "x.X, x.Y"),
        ({"AutoConfig": "configuration_x.X", "AutoTokenizer": ["tokenization_x.X", None]}, None),
        ({}, None),
        (None, None),
        ("modeling.py", None),
    ],
)
def test_code_of_the_models_own_is_not_run_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, listed: object, named: str | None
) -> None:
    data = HUB["Qwen3-0.6B"].config
    assert read_model_config(ModelFiles(write(tmp_path, data | {"auto_map": listed}))) == read_model_config(
        ModelFiles(write(tmp_path, data))
    )
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == (named is not None)
    if named is not None:
        assert said[0].startswith(f"{tmp_path}/config.json: auto_map names code of the model's own ({named}), ")
        assert "transformers' own Qwen3ForCausalLM" in said[0]
