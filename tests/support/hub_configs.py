"""What config.json of models on the hub says, in the spelling of their own files.

Each file of tests/data/hub_configs is one model: ``config``, as the hub has it; ``parameters``, the number that its
card has, of text alone and without what padding of the vocabulary repeats; ``context``, the longest text that its
authors promise. Fields that only training, generation or transformers reads are there too: a reader that refuses what
it does not know must know them.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from tests.support.paths import ROOT

HUB_CONFIGS = ROOT / "tests" / "data" / "hub_configs"


class HubModel(NamedTuple):
    """A configuration, its number of parameters as ``in_short`` has it, and tokens of its context."""

    config: dict[str, Any]
    parameters: str
    context: int


HUB = {path.stem: HubModel(**json.loads(path.read_text())) for path in sorted(HUB_CONFIGS.glob("*.json"))}
"""By the name of the model."""


def described(name: str) -> DecoderConfig:
    """Return the description of one of them."""
    return read(HUB[name].config)


def read(config: dict[str, Any]) -> DecoderConfig:
    """Return the description that a file config.json of these fields gives."""
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        model = read_model_config(ModelFiles(Path(folder)))
    assert isinstance(model, DecoderConfig)
    return model
