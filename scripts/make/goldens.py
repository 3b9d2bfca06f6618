"""Make tests/data/goldens: tiny seeded checkpoints of each family, and what transformers computes with them.

Not part of the tests, since it needs torch: it runs in an environment of its own, of Python 3.11 or newer,

    pip install torch==2.13.0+cpu
    pip install transformers==5.23.0

(the first from the index of torch's CPU builds), as ``python -m scripts.make.goldens``. Each folder gets the checkpoint
in Hugging Face form and golden.npz with, for every prompt number i,

    prompt_i  int32   [T]            random token ids
    greedy_i  int32   [24]           the most probable continuation
    logits_i  float32 [T + 23, V]    row t: logits after the first t + 1 tokens of prompt_i followed by greedy_i

so that ``logits_i[T - 1 :].argmax(-1)`` is ``greedy_i``. The seed of each checkpoint is the first at which every greedy
token leads the second best by at least MIN_GAP, so that rounding does not change it, and continuations vary.
"""

import copy
import json
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
from transformers import LlamaForCausalLM, MistralForCausalLM, OPTForCausalLM

GOLDENS = Path(__file__).parents[2] / "tests" / "data" / "goldens"
NUM_GREEDY = 24
MIN_GAP = 5e-3
MIN_DISTINCT = 8
LENGTHS = (1, 7, 33, 90)

COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA = COMMON | {"intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 128}
OPT = COMMON | {"ffn_dim": 96, "max_position_embeddings": 128}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


@dataclass(frozen=True)
class Variant:
    """One checkpoint. ``contrast`` are settings that must change the logits, which shows that the setting is used."""

    model: Any
    settings: dict[str, Any]
    contrast: dict[str, Any]
    lengths: tuple[int, ...] = LENGTHS
    shard_size: str = "1GB"
    old_spelling: bool = False


VARIANTS = {
    "llama": Variant(
        LlamaForCausalLM,
        LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        {"rope_parameters": DEFAULT_ROPE},
        shard_size="250KB",
        old_spelling=True,
    ),
    "llama3_rope": Variant(
        LlamaForCausalLM,
        LLAMA | {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
        {"rope_parameters": DEFAULT_ROPE},
    ),
    "llama_linear_rope": Variant(
        LlamaForCausalLM,
        LLAMA | {"num_hidden_layers": 1, "rope_parameters": LINEAR_ROPE, "tie_word_embeddings": True},
        {"rope_parameters": DEFAULT_ROPE},
        lengths=(33,),
        old_spelling=True,
    ),
    "llama_bias": Variant(
        LlamaForCausalLM,
        LLAMA | {"rope_parameters": DEFAULT_ROPE, "attention_bias": True, "mlp_bias": True, "head_dim": 24},
        {"rms_norm_eps": 0.1},
    ),
    "mistral_window": Variant(
        MistralForCausalLM, LLAMA | {"rope_parameters": DEFAULT_ROPE, "sliding_window": 16}, {"sliding_window": 17}
    ),
    "opt_pre": Variant(OPTForCausalLM, OPT, {"activation_function": "gelu"}),
    "opt_350m": Variant(
        OPTForCausalLM,
        OPT | {"word_embed_proj_dim": 32, "do_layer_norm_before": False},
        {"activation_function": "gelu"},
        old_spelling=True,
    ),
}


def main() -> None:
    torch.set_num_threads(1)
    for name, variant in VARIANTS.items():
        seed, model, arrays = next(found for seed in count() if (found := attempt(variant, seed)))
        directory = GOLDENS / name
        shutil.rmtree(directory, ignore_errors=True)
        model.save_pretrained(directory, max_shard_size=variant.shard_size)
        write_config(directory, variant)
        np.savez_compressed(directory / "golden.npz", **arrays)
        size = sum(path.stat().st_size for path in directory.iterdir())
        print(f"{name}: seed {seed}, smallest gap {smallest_gap(arrays):.4f}, {size / 1000:.0f} kB")


def attempt(variant: Variant, seed: int) -> tuple[int, Any, dict[str, Any]] | None:
    """Seed, model and golden arrays, or None when the continuations of this seed make a poor test."""
    model = build(variant, seed, {})
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for i, length in enumerate(variant.lengths):
        prompt = rng.integers(0, model.config.vocab_size, length, dtype=np.int32)
        greedy, logits = complete(model, prompt)
        if len(set(greedy.tolist())) < MIN_DISTINCT:
            return None
        arrays |= {f"prompt_{i}": prompt, f"greedy_{i}": greedy, f"logits_{i}": logits}
    if smallest_gap(arrays) < MIN_GAP:
        return None
    last = len(variant.lengths) - 1
    other = forward(build(variant, seed, variant.contrast), arrays[f"prompt_{last}"])
    change = np.abs(other - arrays[f"logits_{last}"][: len(other)]).max()
    assert change > 1e-3, f"{variant.contrast} changes nothing"
    return seed, model, arrays


def build(variant: Variant, seed: int, changes: dict[str, Any]) -> Any:
    """The seeded model, its configuration changed. Eager attention is the plainest, and obeys sliding_window."""
    config = variant.model.config_class(**copy.deepcopy(variant.settings | changes))
    config._attn_implementation = "eager"
    model = variant.model(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(noise * 0.3 + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
            else:
                parameter.copy_(noise * 2.0 / parameter.shape[1] ** 0.5)
    return model


def forward(model: Any, tokens: Any) -> Any:
    """Logits [T, V] of every position, computed in one piece without a cache."""
    with torch.no_grad():
        return model(torch.tensor(tokens, dtype=torch.long)[None], use_cache=False).logits[0].float().numpy()


def complete(model: Any, prompt: Any) -> tuple[Any, Any]:
    """The greedy continuation and the logits along the way."""
    tokens = prompt
    for _ in range(NUM_GREEDY):
        tokens = np.append(tokens, forward(model, tokens)[-1].argmax()).astype(np.int32)
    return tokens[len(prompt) :], forward(model, tokens[:-1])


def smallest_gap(arrays: dict[str, Any]) -> float:
    """The least lead of a greedy token over the second best."""
    gaps = []
    for i in range(len(arrays) // 3):
        best = np.sort(arrays[f"logits_{i}"][len(arrays[f"prompt_{i}"]) - 1 :], axis=-1)
        gaps.append((best[:, -1] - best[:, -2]).min())
    return float(min(gaps))


def write_config(directory: Path, variant: Variant) -> None:
    """Leave out what depends on the version of transformers; go back to the hub's old spelling where asked."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.pop("transformers_version", None)
    if variant.old_spelling:
        config["torch_dtype"] = config.pop("dtype")
        if rope := config.pop("rope_parameters", None):
            config["rope_theta"] = rope.pop("rope_theta")
            kind = rope.pop("rope_type")
            config["rope_scaling"] = None if kind == "default" else {"type": kind} | rope
    path.write_text(json.dumps(config, indent=2) + "\n")
    (directory / "generation_config.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
