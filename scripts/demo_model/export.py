"""The exported model: a directory that transformers, and whatever reads its format, can load."""

import json
from dataclasses import asdict, fields
from pathlib import Path

import jax.numpy as jnp
from safetensors.flax import load_file, save
from tokenizers import Tokenizer

from scripts.demo_model.corpus import END_OF_TEXT
from scripts.demo_model.model import DemoConfig, Params


def export(params: Params, config: DemoConfig, tokenizer: Tokenizer, out: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors (bfloat16) and the tokenizer's files to ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    end = tokenizer.token_to_id(END_OF_TEXT)
    description = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(config),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": end,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    _write_json(out / "config.json", description)
    _write_json(out / "generation_config.json", {"eos_token_id": end, "do_sample": False})
    rounded = {name: weight.astype(jnp.bfloat16) for name, weight in sorted(params.items())}
    (out / "model.safetensors").write_bytes(save(rounded, metadata={"format": "pt"}))
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "model_max_length": config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(out / "tokenizer_config.json", settings)


def load_model(directory: Path) -> tuple[Params, DemoConfig, Tokenizer]:
    """Read an export back; the parameters come in float32, each a bfloat16 number."""
    description = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = DemoConfig(**{field.name: description[field.name] for field in fields(DemoConfig)})
    params = {name: weight.astype(jnp.float32) for name, weight in load_file(directory / "model.safetensors").items()}
    return params, config, Tokenizer.from_file(str(directory / "tokenizer.json"))


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
