"""docs/models.md says of each model what happens with it."""

import json
import re
from pathlib import Path

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from tests.support.hub_configs import HUB, described
from tests.support.paths import ROOT

_ROW = re.compile(r"\| (\d+) \| ([^|]+) \| [\d.]+ \| ([^|]+) \| (served|refused: )([^|]*) \|")
PAGE = (ROOT / "docs" / "models.md").read_text()
ROWS = [_ROW.fullmatch(line) for line in PAGE.splitlines() if re.match(r"\| \d", line)]


def test_each_line_of_the_table_is_understood() -> None:
    assert [row and int(row[1]) for row in ROWS] == list(range(1, 41))
    assert f"{sum(row is not None and row[4] == 'served' for row in ROWS)} are supported" in PAGE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row and row[2]))
def test_a_model_is_served_or_refused_as_the_page_says(row: "re.Match[str]", tmp_path: Path) -> None:
    for architecture in re.findall(r"`(\w+)`", row[3]):
        if row[4] == "served":
            found = [name for name, model in HUB.items() if architecture in model.config["architectures"]]
            assert found, "a configuration of it must be in tests/data/hub_configs"
            assert all(described(name) for name in found)
            continue
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        with pytest.raises(ConfigError) as refused:
            read_model_config(ModelFiles(tmp_path))
        assert f"architectures is ['{architecture}'], which {row[5]}, and is not served" in str(refused.value)
