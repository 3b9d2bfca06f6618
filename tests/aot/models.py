"""Models whose layers have other parts than a Llama's, in their true widths and with few layers: whole periods of their
windows."""

from jaxgen.core.decoder_config import (
    AttentionConfig,
    DecoderConfig,
    HeadConfig,
    MLPConfig,
    NormConfig,
    PositionConfig,
    RopeConfig,
)
from jaxgen.core.moe_config import MoEConfig

_LATE = NormConfig(eps=1e-6, late=True)

GEMMA3_12B = DecoderConfig(
    family="gemma",
    vocab_size=262_208,
    hidden_size=3840,
    intermediate_size=15_360,
    num_layers=6,
    num_heads=16,
    num_kv_heads=8,
    head_dim=256,
    max_position=131_072,
    dtype="bfloat16",
    windows=(*(1024,) * 5, None),
    norm=_LATE,
    positions=PositionConfig(
        ropes=(RopeConfig(theta=1e4), RopeConfig(theta=1e6, kind="linear", factor=8.0)),
        layer_ropes=(*(0,) * 5, 1),
    ),
    placement="sandwich",
    attention=AttentionConfig(scale=256**-0.5, qk_norm=_LATE),
    mlp=MLPConfig(activation="gelu_tanh"),
    head=HeadConfig(tied=True),
    embed_scale=3840**0.5,
)
GPT_OSS_20B = DecoderConfig(
    family="gpt_oss",
    vocab_size=201_088,
    hidden_size=2880,
    intermediate_size=2880,
    num_layers=4,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    max_position=131_072,
    dtype="bfloat16",
    windows=(128, None) * 2,
    norm=NormConfig(eps=1e-5),
    positions=PositionConfig(
        ropes=(
            RopeConfig(
                theta=150_000.0,
                kind="yarn",
                factor=32.0,
                original_max_position=4096,
                truncate=False,
                attention_factor=1.3465735902799727,
            ),
        )
    ),
    attention=AttentionConfig(qkv_bias=True, out_bias=True, sinks=True),
    moe=MoEConfig(
        experts=32,
        per_token=4,
        inner=2880,
        scoring="softmax_after_topk",
        router_bias=True,
        expert_bias=True,
        activation="swiglu_clipped",
    ),
)
