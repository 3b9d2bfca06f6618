"""Models of each tier in their true widths, as the hub's config.json describes them, with few layers: whole periods of
their windows, and of their kinds."""

from jaxgen.core.decoder_config import DecoderConfig
from tests.support.hub_configs import described

LAYERS = {
    "Qwen3-8B": 4,
    "gemma-3-12b-it": 6,
    "gpt-oss-20b": 4,
    "Qwen3-30B-A3B-Thinking-2507": 4,
    "LFM2.5-350M": 6,
    "Qwen3.6-27B": 4,
}
"""By name, the layers to compile: time grows with them, and one more adds what the one before it did."""


def model_of(name: str) -> DecoderConfig:
    """Return the description of a model of the hub, cut to its first layers."""
    return described(name).of_layers(LAYERS[name])
