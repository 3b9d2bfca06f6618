"""Configurations of Granite."""

from tests.support.hub_configs.fields import Model, gated

MODELS: dict[str, Model] = {
    "granite-3.3-2b-instruct": (
        gated(
            *("GraniteForCausalLM", 49_159, 2048, 8192, 40, 32, 8),
            eps=1e-5,
            tied=True,
            context=131_072,
            attention_bias=False,
            attention_multiplier=0.015625,
            embedding_multiplier=12.0,
            logits_scaling=8.0,
            mlp_bias=False,
            residual_multiplier=0.22,
            rope_theta=10_000_000.0,
        ),
        "2.5 B",
    ),
}
