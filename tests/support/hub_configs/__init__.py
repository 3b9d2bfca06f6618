"""What config.json of models on the hub says, in the spelling of their own files, and how many parameters they have.

Fields that only training, generation or transformers reads are there too: a reader that refuses what it does not know
must know them.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.weights.hf_config import read_model_config
from tests.support.hub_configs import (
    falcon,
    gemma,
    glm4,
    gpt2,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    mistral,
    olmo,
    opt,
    phi,
    qwen,
    smollm,
)
from tests.support.hub_configs.fields import Config, Model

HUB: dict[str, Model] = {
    **falcon.MODELS,
    **gemma.MODELS,
    **glm4.MODELS,
    **gpt2.MODELS,
    **gpt_neox.MODELS,
    **gpt_oss.MODELS,
    **granite.MODELS,
    **llama.MODELS,
    **mistral.MODELS,
    **olmo.MODELS,
    **opt.MODELS,
    **phi.MODELS,
    **qwen.MODELS,
    **smollm.MODELS,
}
"""By the name of the model."""


def described(name: str) -> DecoderConfig:
    """Return the description of one of them."""
    return read(HUB[name][0])


def read(fields: Config) -> DecoderConfig:
    """Return the description that a file config.json of these fields gives."""
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(fields))
        config = read_model_config(Path(folder))
    assert isinstance(config, DecoderConfig)
    return config
