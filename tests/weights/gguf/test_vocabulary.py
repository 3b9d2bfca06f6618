"""Tokenizers of GGUF files against those that the vocabularies were taken from, and chat templates."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers, processors
from transformers import GemmaTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from jaxgen.core.errors import ConfigError
from jaxgen.text import tokenizer as text
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.gguf.architectures import ARCHITECTURES
from jaxgen.weights.gguf.byte_level import SPLITTINGS
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.vocabulary import ends_of, write_tokenizer
from jaxgen.weights.huggingface.chat_template import read_chat_format
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.conversions import run
from tests.support.gguf_files import NORMAL, byte_level, sentencepiece, write
from tests.support.tiny_tokenizers import BOS, byte_fallback
from tests.support.tiny_tokenizers import byte_level as trained

TEXTS = (
    "The quick brown fox, the lazy dog.",
    "",
    " leading, and trailing  ",
    "  two  and   three\n\n\tlines\r\n  of   code(): 12345 and 67,890 or x2",
    "naïve café, nai\u0308ve cafe\u0301: composed and not",
    "HELLO World's don't WE'LL I'M it'S",
    "😀😀 smile 東京と日本 ελληνικά \u0645\u0631\u062d\u0628\u0627 ½ ² Ⅷ",
    "<s>tokens</s> <tool>in</tool> text<tool> <|end|>\nand <s> spaced </s> out \u2581\u2581the",
    "\u00a0\u2003odd\u200bspaces\u2028and lines\u0000",
)


def converted(directory: Path, vocabulary: dict[str, Any], **metadata: Any) -> Path:
    """A tiny model with a vocabulary, written as a GGUF file and converted."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = max(len(vocabulary["tokens"]), 384)
    make_tiny_checkpoint(directory / "source", **sizes, num_key_value_heads=1, vocab_size=size)
    fields = {f"tokenizer.{key.replace('__', '.')}": value for key, value in metadata.items()}
    file = write(directory / "m.gguf", directory / "source", "llama", vocabulary=vocabulary, metadata=fields)
    return run(file, directory / "converted")


def assert_same(directory: Path, source: Tokenizer) -> None:
    """Every text gives the source's tokens, with and without those that are added, and comes back."""
    tokenizer = text.Tokenizer.from_directory(directory)
    for one in TEXTS:
        for special in (True, False):
            assert tokenizer.encode(one, special=special) == source.encode(one, add_special_tokens=special).ids, one
        ids = source.encode(one, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text.Tokenizer(Tokenizer.from_str(source.to_str())).decode(ids), one


def with_layout(of: Callable[..., Any], **options: Any) -> Tokenizer:
    """The trained vocabulary in a layout of transformers."""
    model = json.loads(trained().to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    made: Tokenizer = of(vocab=model["vocab"], merges=merges, **options).backend_tokenizer
    made.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return made


def test_gpt_2(tmp_path: Path) -> None:
    assert_same(converted(tmp_path, byte_level(trained(), "gpt-2")), trained())


def test_qwen(tmp_path: Path) -> None:
    """One digit at a time, and text is composed."""
    source = with_layout(Qwen2Tokenizer, unk_token=None, pad_token="</s>", eos_token="</s>")
    assert_same(converted(tmp_path, byte_level(source, "qwen2")), source)


def test_llama_3(tmp_path: Path) -> None:
    """Three digits at a time, and BOS before a text, unless the file says otherwise."""
    source = trained()
    source.pre_tokenizer = pre_tokenizer_of_tiktoken()
    source.model.ignore_merges = True
    plain = source.to_str()
    source.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    vocabulary = byte_level(source, "llama-bpe")
    assert_same(converted(tmp_path / "a", vocabulary, ggml__bos_token_id=0), source)
    off = {"ggml__bos_token_id": 0, "ggml__add_bos_token": False}
    assert_same(converted(tmp_path / "b", vocabulary, **off), Tokenizer.from_str(plain))
    with pytest.raises(ConfigError, match=r"bos_token_id is missing, but add_bos_token asks for it"):
        converted(tmp_path / "c", vocabulary)


def pre_tokenizer_of_tiktoken() -> Any:
    split = pre_tokenizers.Split(Regex(TikTokenConverter().pattern), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def test_text_is_split_as_transformers_splits_it() -> None:
    """Its own table is a second source of the expressions; of GLM-4's it has none, which is Llama 3's."""
    theirs = GGUF_PRE_TOKENIZER_SPLITS | dict.fromkeys(("glm4", "glm5", "chatglm-bpe"), TikTokenConverter().pattern)
    known = SPLITTINGS.keys() & theirs.keys()
    assert len(known) > 15
    assert {name: SPLITTINGS[name].expressions for name in known} == {name: (theirs[name],) for name in known}
    assert SPLITTINGS["llama-bpe"].expressions == (TikTokenConverter().pattern,)


@pytest.mark.parametrize(
    ("names", "text", "pieces"),
    [
        (
            ("default", ""),
            "It's 12345 (ok!)\t\tx",
            ["It", "'", "s", " ", "123", "45", " ", "(", "ok", "!)", "\t", "\t", "x"],
        ),
        (
            ("gpt-2", "a.x-4.0", "mellum", "exaone4", "trillion", "gigachat"),
            "It's 12345 (ok!)",
            ["It", "'s", " 12345", " (", "ok", "!)"],
        ),
        (("command-r", "minerva-7b", "smollm"), "a 123 b", ["a", " ", "1", "2", "3", " b"]),
        (("deepseek-coder",), "a\n b 12 (東京)가", ["a", "\n", " b", " ", "1", "2", " (", "東京", ")", "가"]),
        (("deepseek-llm",), "é ა, 12東京  ", ["é", " ", "ა", ",", " ", "12", "東京", "  "]),
        (
            ("deepseek-v3",),
            "It's_x[a 12345 東京たわー가",
            ["It", "'s", "_x", "[a", " ", "123", "45", " ", "東京たわー", "가"],
        ),
        (("viking",), "Ab, (c) 12", ["Ab", ", (", "c", ")", " ", "1", "2"]),
        (("poro-chat",), "Ab, c 12", ["Ab", ",", " c", " 12"]),
        (("superbpe",), "ab 1234567 c", ["ab ", "1", "234", "567", " c"]),
        (("tiny_aya",), "x1234567's", ["x", "1", "234", "567", "'s"]),
        (("minicpm5",), "x12345 a", ["x", "123", "45", " a"]),
        (("seed-coder",), "a!\n\n12", ["a", "!", "\n\n", "1", "2"]),
        (("stablelm2", "megrez", "kormo", "f2llmv2"), "I'M 12", ["I", "'M", " ", "1", "2"]),
    ],
)
def test_pieces_are_those_of_llama_cpp(names: tuple[str, ...], text: str, pieces: list[str]) -> None:
    for name in names:
        splitting = SPLITTINGS[name or "default"]
        found = splitting.pre_tokenizer().pre_tokenize_str(text)
        assert [text[begin:end] for _, (begin, end) in found] == pieces, name


WHOLE = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2", "tekken", "minicpm5"}
"""Names for which llama.cpp sets ``ignore_merges``."""
WHOLE |= {"glm4", "glm5", "chatglm-bpe"}  # one kind there, whose own tokenizer looks for whole pieces first


@pytest.mark.parametrize("name", SPLITTINGS)
def test_a_token_that_merges_do_not_reach_is_whole_where_merges_are_ignored(name: str) -> None:
    vocabulary = byte_level(trained(), name)
    end = len(vocabulary["tokens"])
    vocabulary |= {"tokens": [*vocabulary["tokens"], "zzz"], "kinds": [*vocabulary["kinds"], 1]}
    tokenizer = tokenizer_of(vocabulary)
    assert (tokenizer.encode("zzz", add_special_tokens=False).ids == [end]) == (name in WHOLE)


def tokenizer_of(vocabulary: dict[str, Any]) -> Tokenizer:
    """What is made of a file that has a vocabulary and no more."""
    size = len(vocabulary["tokens"])
    data = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.bos_token_id": 0}
    arrays = {"tokens": vocabulary["tokens"], "token_type": vocabulary["kinds"], "merges": vocabulary["merges"]}
    if vocabulary["pre"] is not None:
        data["tokenizer.ggml.pre"] = vocabulary["pre"]
    file = SimpleNamespace(
        path=Path("m.gguf"),
        fields=JsonFields(data, "m.gguf"),
        array=lambda key: arrays.get(key.removeprefix("tokenizer.ggml.")),
        tensors={"token_embd.weight": SimpleNamespace(shape=(size, 8))},
    )
    with TemporaryDirectory() as directory:
        write_tokenizer(cast(GgufFile, file), ARCHITECTURES["llama"], Path(directory))
        return Tokenizer.from_file(f"{directory}/tokenizer.json")


def test_a_file_that_names_no_splitting_has_the_default() -> None:
    named, unnamed = (tokenizer_of(byte_level(trained(), cast(str, name))) for name in ("default", None))
    assert named.to_str() == unnamed.to_str()


def test_falcon_splits_signs_and_numbers(tmp_path: Path) -> None:
    pieces = SPLITTINGS["falcon"].pre_tokenizer().pre_tokenize_str("It's 12345 (ok!)")
    assert [piece for piece, _ in pieces] == ["It", "'", "s", "Ġ", "123", "45", "Ġ", "(", "ok", "!)"]


def test_digits_are_split_off_first(tmp_path: Path) -> None:
    source = trained()
    source.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    assert_same(converted(tmp_path, byte_level(source, "smollm")), source)


@pytest.mark.parametrize("eos", [False, True])
def test_llama_2(eos: bool, tmp_path: Path) -> None:
    """Merges follow from scores; a space before the text, BOS, and EOS behind it where the file asks for it."""
    source = byte_fallback()
    if eos:
        made = json.loads(source.to_str())
        made["model"]["merges"].reverse()  # an order that is not that of ids
        source = Tokenizer.from_str(json.dumps(made))
        special = [(BOS, 1), ("</s>", 2)]
        source.post_processor = processors.TemplateProcessing(single=f"{BOS} $A </s>", special_tokens=special)
    vocabulary = sentencepiece(source)
    assert_same(converted(tmp_path, vocabulary, **({"ggml__add_eos_token": True} if eos else {})), source)


def test_phi_3_drops_the_space_behind_special_tokens(tmp_path: Path) -> None:
    source = byte_fallback()
    source.add_tokens([AddedToken("<|end|>", special=True, normalized=False, rstrip=True)])
    source.add_tokens([AddedToken("</s>", special=True, normalized=False, rstrip=True)])
    vocabulary = sentencepiece(source)
    converted(tmp_path, vocabulary)
    write_tokenizer(GgufFile(tmp_path / "m.gguf"), ARCHITECTURES["phi3"], tmp_path)
    assert_same(tmp_path, source)
    assert source.encode("<|end|> \na").ids == source.encode("<|end|>a").ids


RUNS, LINES = ["▁▁", "▁▁▁"], ["\n", "\n\n"]
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
GEMMA += [*RUNS, "he", "ll", "hell", "▁t", "▁th", "in", "es", "▁", *"abcdefghilnorstuxy"]
GEMMA_IDS = {f"ggml__{name}_token_id": i for name, i in {"bos": 2, "eos": 1, "unknown": 3, "padding": 0}.items()}


def gemma_s(pieces: list[str], added: list[str], order: int) -> Tokenizer:
    """Merges in the order of the ids of their tokens, or the other way round, and BOS before a text."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = [
        (token[:cut], token[cut:])
        for token in pieces[260:][::order]
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in ids and token[cut:] in ids
    ]
    source: Tokenizer = GemmaTokenizer(vocab=ids, merges=cast(Any, merges)).backend_tokenizer
    source.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in added])
    source.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return source


def test_gemma(tmp_path: Path) -> None:
    """No space before a text; tokens merge in the order of their ids, and runs of spaces are written as spaces."""
    source = gemma_s(GEMMA, RUNS, 1)
    vocabulary = sentencepiece(source)
    vocabulary["tokens"] = [token.replace("▁", " ") if token in RUNS else token for token in vocabulary["tokens"]]
    vocabulary["scores"] = [0.0] * len(vocabulary["tokens"])
    converted(tmp_path, vocabulary, ggml__add_space_prefix=False, **GEMMA_IDS)
    write_tokenizer(GgufFile(tmp_path / "m.gguf"), ARCHITECTURES["gemma2"], tmp_path)
    assert_same(tmp_path, source)


def test_gemma_4(tmp_path: Path) -> None:
    """Merges are the file's, ends of lines that are a token stay whole, and texts begin with BOS whatever it says.

    A token that ends a call is a user-defined one.
    """
    response = "<|tool_response>"
    source = gemma_s([*GEMMA, *LINES, response], [*LINES, response], -1)
    vocabulary = sentencepiece(source)
    normal = [
        NORMAL if token in LINES else kind
        for token, kind in zip(vocabulary["tokens"], vocabulary["kinds"], strict=True)
    ]
    merges = [" ".join(merge) for merge in json.loads(source.to_str())["model"]["merges"] if "\n" not in merge[0]]
    changes = {"model": "gemma4", "kinds": normal, "merges": merges, "scores": [-1000.0] * len(normal)}
    assert_same(converted(tmp_path, vocabulary | changes, ggml__add_bos_token=False, **GEMMA_IDS), source)
    ends = ends_of(GgufFile(tmp_path / "m.gguf"), ARCHITECTURES["gemma4"])
    assert ends == {"bos_token_id": 2, "eos_token_id": [1, source.token_to_id(response)]}


def test_scores_that_are_probabilities_choose_the_greatest_sum(tmp_path: Path) -> None:
    """A text has the token of a byte only for a character that is not in the vocabulary."""
    letters = {
        "▁": -3.5,
        "a": -3.25,
        "b": -3.125,
        "c": -3.0,
        "<": -4.5,
        "0": -4.5,
        "x": -4.5,
        "4": -4.5,
        "1": -4.5,
        ">": -4.5,
    }
    words = letters | {"ab": -4.0, "bc": -2.5, "▁abc": -6.5, "▁a": -3.75}
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [2, 3, 3, *([6] * 256), *([1] * len(words))]
    scores = [0.0] * 259 + [*words.values()]
    vocabulary = {"model": "llama", "tokens": names, "kinds": kinds, "scores": scores}
    tokenizer = text.Tokenizer.from_directory(converted(tmp_path, vocabulary))
    for one, pieces in {
        "abc": ["▁a", "bc"],
        "aab<0x41>é": ["▁a", "ab", *"<0x41>", "<0xC3>", "<0xA9>"],
        " ": ["▁", "▁"],
    }.items():
        assert tokenizer.encode(one, special=False) == [names.index(piece) for piece in pieces], one
        assert tokenizer.decode(tokenizer.encode(one)) == one


@pytest.mark.parametrize(
    ("name", "value"),
    [("remove_extra_whitespaces", True), ("treat_whitespace_as_suffix", True), ("precompiled_charsmap", [1, 2, 3])],
)
def test_steps_before_pieces_are_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"tokenizer.ggml.{name} .*not supported"):
        converted(tmp_path, sentencepiece(byte_fallback()), **{f"ggml__{name}": value})


def test_rows_without_a_token_are_none(tmp_path: Path) -> None:
    source = trained()
    vocabulary = byte_level(source, "gpt-2")
    size = len(vocabulary["tokens"])
    vocabulary["tokens"] += [f"[PAD{size}]", f"[PAD{size + 1}]"]
    vocabulary["kinds"] += [5, 5]
    directory = converted(tmp_path, vocabulary)
    assert text.Tokenizer.from_directory(directory).vocab_size == size
    assert_same(directory, source)


def test_chat_templates_come_along(tmp_path: Path) -> None:
    vocabulary = byte_level(trained(), "gpt-2")
    metadata = {"chat_template": "{{ messages }}é", "ggml__eos_token_id": 1}
    one = read_chat_format(converted(tmp_path / "one", vocabulary, **metadata))
    assert one is not None
    assert (one.template, one.special_tokens, one.tool_template) == ("{{ messages }}é", {"eos_token": "</s>"}, None)
    two = read_chat_format(converted(tmp_path / "two", vocabulary, **metadata, chat_template__tool_use="T"))
    assert two is not None
    assert (two.template, two.tool_template) == ("{{ messages }}é", "T")
    assert read_chat_format(converted(tmp_path / "none", vocabulary)) is None
