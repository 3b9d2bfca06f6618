"""EXAONE 4 (LG, arXiv 2507.11407): norms of the output of each sub-layer and of each head's queries and keys; where
some layers have a window, the others know no positions."""

from jaxgen.weights.families.family import (
    SLIDING,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    read_decoder,
    read_layer_types,
    replace,
    windows_of,
)


def read_exaone4(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    config = read_decoder(fields, dtype, max_position=2048, kv_heads=32, eps=1e-5, placement="post")
    window = fields.size_or_null("sliding_window", 4096)

    def slides(layer: int) -> bool:
        return window is not None and (layer + 1) % fields.size("sliding_window_pattern", 4) != 0

    # files that list the types have letters in the other field, which transformers does not read then
    types = read_layer_types(fields, config.num_layers, slides)
    ropes = () if window is None else tuple(0 if kind == SLIDING else None for kind in types)
    return replace(
        config,
        attention=replace(config.attention, qk_norm=config.norm),
        windows=windows_of(types, window),
        positions=replace(config.positions, layer_ropes=ropes),
    )


FAMILY = Family(
    name="exaone4",
    read={"Exaone4ForCausalLM": read_exaone4},
    parameters=DecoderNames().table,
    ignored=("sliding_window_pattern",),
)
