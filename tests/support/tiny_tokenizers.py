"""Small tokenizers of each kind, made on the spot, and their directories as transformers expects them."""

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BOS, EOS = "<s>", "</s>"

_TEXT = (
    "The quick brown fox jumps over the lazy dog. def main(): return [value for value in values if value]\n"
    "naïve café, smile 😀 twice 😀😀, 東京 and 日本 and ελληνικά; END of the text, END.\n"
) * 4


def byte_level() -> Tokenizer:
    """GPT-2's kind: 256 bytes and some merges; no BOS is added to texts. Ids: <s> 0, </s> 1, then the alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("café", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Llama 2's kind: words begin with ▁, unknown characters become byte tokens, texts begin with <s>."""
    tokenizer = _sentencepiece_like()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """The same vocabulary behind the Metaspace pre-tokenizer and decoder."""
    tokenizer = _sentencepiece_like()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def word_level() -> Tokenizer:
    """Words joined by spaces: no decoder at all."""
    words = ["<unk>", BOS, EOS, "one", "two", "three"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([BOS, EOS])
    return tokenizer


def _sentencepiece_like() -> Tokenizer:
    pieces = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehlnorstxyé,."]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("▁", "▁"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    pieces += ["".join(merge) for merge in merges]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", BOS, EOS])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    return tokenizer


@cache
def byte_level_json() -> str:
    return byte_level().to_str()


def save(tokenizer: Tokenizer, directory: Path) -> Path:
    """Write ``directory`` so that AutoTokenizer loads it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def save_gpt2_files(directory: Path) -> Path:
    """The files of OPT's first checkpoints: a vocabulary and merges, no tokenizer.json, a BOS before every text."""
    directory.mkdir(parents=True, exist_ok=True)
    model = json.loads(byte_level_json())["model"]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "\n".join(" ".join(merge) for merge in model["merges"])
    (directory / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    token = {"__type": "AddedToken", "lstrip": False, "rstrip": False, "normalized": True, "single_word": False}
    names = {"bos_token": EOS, "eos_token": EOS, "unk_token": EOS, "pad_token": BOS}
    tokens = {name: token | {"content": content} for name, content in names.items()}
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "errors": "replace"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config | tokens))
    (directory / "config.json").write_text(json.dumps({"model_type": "opt"}))
    return directory
