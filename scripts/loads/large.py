"""Shapes of the models in the check."""

from dataclasses import replace

from jaxgen.core.decoder_config import llama_config, opt_config
from jaxgen.core.decoder_parts import RopeConfig
from jaxgen.core.moe_config import MoEConfig
from jaxgen.weights.encodings.mxfp4 import FORMAT as MXFP4
from jaxgen.weights.encodings.weight_formats import with_formats
from tests.support.hub_configs import described

LLAMA3_8B = llama_config(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=8192,
    dtype="bfloat16",
    norm_eps=1e-5,
    rope=RopeConfig(theta=500_000.0),
)
OPT_6_7B = opt_config(
    vocab_size=50_272,
    hidden_size=4096,
    intermediate_size=16_384,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    max_position=2048,
    dtype="bfloat16",
    embed_size=4096,
)
QWEN3_30B_A3B = described("Qwen3-30B-A3B-Thinking-2507")
GEMMA3_12B = described("gemma-3-12b-it")
GPT_OSS_20B_BF16 = described("gpt-oss-20b")
GPT_OSS_20B = with_formats(
    GPT_OSS_20B_BF16, {f"layers.mlp.experts.{name}.weight": MXFP4 for name in ("gate_up", "down")}
)
TINY = llama_config(
    vocab_size=2048,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=4096,
    dtype="bfloat16",
    norm_eps=1e-5,
    rope=RopeConfig(),
)
TINY_MOE = replace(
    QWEN3_30B_A3B.of_layers(1),
    vocab_size=512,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    moe=MoEConfig(experts=4, per_token=2, inner=32),
)
