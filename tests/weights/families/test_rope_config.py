"""The type of a rotary embedding is read, or what only a type explains is refused or told of, never left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from tests.support.hub_configs import HUB


def read(directory: Path, **fields: Any) -> DecoderConfig:
    (directory / "config.json").write_text(json.dumps(HUB["Qwen3-0.6B"].config | fields))
    return read_model_config(ModelFiles(directory))


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"factor": 8.0}, "factor"),
        ({"type": None, "factor": 8.0}, "factor"),
        (
            {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "factor and low_freq_factor and high_freq_factor",
        ),
        ({"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}, "short_factor and long_factor"),
        ({"factor": 1.0, "beta_fast": 16.0}, "factor and beta_fast"),
    ],
)
def test_factors_without_a_type_are_refused(tmp_path: Path, name: str, given: dict[str, Any], named: str) -> None:
    """transformers reads them as no scaling, which nobody who wrote factors can have meant."""
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, **{name: given})
    said = f"{tmp_path}/config.json: {name}: rope_type is missing, without which {named} cannot be read"
    assert str(refused.value) == f"{said}; it must be one of linear, proportional, llama3, yarn, longrope"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"factor": 1.0}, None),
        ({"original_max_position_embeddings": 64}, None),
        ({"rope_type": "default", "factor": 1.0}, None),
        ({"rope_type": "default", "type": "default"}, None),
        ({"rope_type": "default", "factor": 8.0}, "factor changes nothing with rope type 'default', as by "),
        ({"rope_type": "default", "type": "yarn"}, "rope_type is 'default' and type 'yarn': the first holds, as by "),
    ],
)
def test_what_a_named_type_does_not_take_is_told(
    tmp_path: Path, given: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers takes such files too, and computes the same."""
    assert read(tmp_path, rope_scaling=given) == read(tmp_path)
    found = [one.getMessage() for one in caplog.records]
    assert [line.startswith(f"{tmp_path}/config.json: rope_scaling: {said}") for line in found] == [True] * bool(said)


def test_the_old_name_of_a_type_is_the_same_type(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    factors = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64, "original_max_position_embeddings": 64}
    old, new = (
        read(tmp_path, rope_scaling=factors | kind)
        for kind in ({"type": "su", "rope_type": "longrope"}, {"rope_type": "longrope"})
    )
    assert old == new
    assert caplog.records == []


@pytest.mark.parametrize("name", ["mscale", "mscale_all_dim", "beta_fast", "beta_slow"])
def test_a_zero_means_none_to_yarn(tmp_path: Path, name: str) -> None:
    """As to transformers, and so in files of Devstral 2."""
    there = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    there |= {"mscale": 0.5, "mscale_all_dim": 0.8}
    without = {key: value for key, value in there.items() if key != name}
    assert read(tmp_path, rope_scaling=there | {name: 0}) == read(tmp_path, rope_scaling=without)
    assert read(tmp_path, rope_scaling=there | {name: 0.3}) != read(tmp_path, rope_scaling=without)
    with pytest.raises(ConfigError, match=f"{name} must be a positive number, not False"):
        read(tmp_path, rope_scaling=there | {name: False})


def test_queries_that_are_scaled_by_nothing_are_not_scaled(tmp_path: Path) -> None:
    data = HUB["Devstral-2-123B-Instruct"].config
    (tmp_path / "config.json").write_text(json.dumps(data))
    assert read_model_config(ModelFiles(tmp_path)).positions.query_scale is None
