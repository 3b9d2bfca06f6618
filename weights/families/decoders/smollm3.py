"""SmolLM3: Llama with layers that know no positions (NoPE, arXiv 2305.19466)."""

from typing import Any

from jaxgen.weights.families.decoders.qwen2 import read_windows
from jaxgen.weights.families.family import DecoderConfig, DecoderNames, DType, Family, JsonFields, read_decoder, replace


def read_smollm3(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    sizes: dict[str, Any] = {"theta": 2_000_000.0, "tied": True}
    config = read_decoder(fields, dtype, max_position=32_768, kv_heads=4, attention_bias=False, mlp_bias=False, **sizes)
    num_layers, interval = config.num_layers, fields.size("no_rope_layer_interval", 4)
    # 1 means that the layer has rotary positions
    listed = fields.by_layer("no_rope_layers", num_layers, "0 and 1", lambda value: value in (0, 1))
    turns = listed or tuple(int((layer + 1) % interval != 0) for layer in range(num_layers))
    positions = replace(config.positions, layer_ropes=tuple(0 if turned else None for turned in turns))
    return replace(config, windows=read_windows(fields, lambda layer: not turns[layer]), positions=positions)


FAMILY = Family(
    name="smollm3",
    read={"SmolLM3ForCausalLM": read_smollm3},
    parameters=DecoderNames().table,
    ignored=("sliding_window", "max_window_layers", "layer_types", "no_rope_layer_interval"),
)
