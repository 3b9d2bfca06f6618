"""Configurations of models on the hub are read as they are: none is refused for a field that its file has."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.weights.families import FAMILIES
from jaxgen.weights.hf_config import read_model_config
from jaxgen.weights.survey import in_short, num_parameters
from tests.support.hub_configs import HUB


def read(directory: Path, config: dict[str, Any]) -> DecoderConfig:
    (directory / "config.json").write_text(json.dumps(config))
    found = read_model_config(directory)
    assert isinstance(found, DecoderConfig)
    return found


@pytest.mark.parametrize("name", HUB)
def test_a_model_of_the_hub_is_read_and_has_its_size(name: str, tmp_path: Path) -> None:
    config, size = HUB[name]
    assert in_short(num_parameters(read(tmp_path, config))) == size


def test_each_family_has_one(tmp_path: Path) -> None:
    assert {read(tmp_path, config).family for config, _ in HUB.values()} == set(FAMILIES)
