"""Configurations of GPT-NeoX, as Pythia has it."""

from tests.support.hub_configs.fields import COMMON, Model, sizes

MODELS: dict[str, Model] = {
    "pythia-70m": (
        {"architectures": ["GPTNeoXForCausalLM"]}
        | COMMON
        | sizes(50_304, 512, 2048, 6, 8, None)
        | {
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "rotary_emb_base": 10_000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
        },
        "70.4 M",
    ),
}
