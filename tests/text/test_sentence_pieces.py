"""A SentencePiece model without tokenizer.json has the ids of the library sentencepiece, or is refused by name."""

import io
import json
import random
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgen.core.errors import ConfigError, RequestRefusedError
from jaxgen.core.sampling_params import Grammar, SamplingParams
from jaxgen.text.constraint import Constraints, follow
from jaxgen.text.tokenizer import Tokenizer
from jaxgen.text.tokenizer_cache import load_tokenizer, tokenizer_problem

library = pytest.importorskip("sentencepiece")

_SENTENCES = [
    "The quick brown fox jumps over the lazy dog. hello world number 12345",
    "naïve café, ﬁne Å ①, 東京 and 日本",
    "good morning to all the people of the world",
] * 5
MODELS: dict[str, dict[str, Any]] = {
    "no prefix": {"model_type": "bpe", "normalization_rule_name": "identity", "add_dummy_prefix": False},
    "Llama": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<user>", "  "],
    },
    "no bytes": {"model_type": "bpe", "byte_fallback": False},
    "unigram": {"model_type": "unigram", "user_defined_symbols": ["<user>"]},
    "unigram without bytes": {"model_type": "unigram", "byte_fallback": False, "normalization_rule_name": "nfkc_cf"},
    "suffix": {"model_type": "unigram", "treat_whitespace_as_suffix": True},
}
GEMMA = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>"}
LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
_PARTS = [
    "hello ",
    "world",
    " the ",
    "  ",
    "<user>",
    "▁",
    "\t",
    "\n",
    "\x00",
    "e\u0301",
    "e\u0301\u0323",
    "ﬁ",
    "東",
    "😀",
]
_PARTS += ["\u00a0", "\u200b", "①", *"abcdehlorwt T5"]


@cache
def trained(name: str) -> bytes:
    """Return a model of some hundred pieces; a charsmap takes its 240 KB."""
    writer = io.BytesIO()
    settings = {"vocab_size": 330, "hard_vocab_limit": False, "byte_fallback": True, "minloglevel": 2} | (
        MODELS | {"Gemma": GEMMA}
    )[name]
    library.SentencePieceTrainer.train(sentence_iterator=iter(_SENTENCES), model_writer=writer, **settings)
    return writer.getvalue()


def saved(directory: Path, name: str = "Llama", **config: Any) -> Path:
    (directory / "tokenizer.model").write_bytes(trained(name))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def processor(name: str = "Llama") -> Any:
    return library.SentencePieceProcessor(model_proto=trained(name))


@pytest.mark.parametrize(
    "config", [{}, LLAMA, {"tokenizer_class": "GemmaTokenizerFast"}], ids=["none", "Llama", "Gemma"]
)
@pytest.mark.parametrize("name", MODELS)
def test_ids_are_the_librarys(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    tokenizer, reference = Tokenizer.from_directory(saved(tmp_path, name, **config)), processor(name)
    draw = random.Random(1)
    for text in ["", "Hello world", *("".join(draw.choices(_PARTS, k=draw.randrange(15))) for _ in range(60))]:
        ids = reference.encode(text)
        assert tokenizer.encode(text, special=False) == ids, text
        assert tokenizer.encode(text) == [1, *ids], text
        assert tokenizer.least_tokens(text) <= len(ids)
    text = "hello the 12345 world"
    assert tokenizer.decode(tokenizer.encode(text)).rstrip() == text


def test_texts_of_special_tokens_are_found(tmp_path: Path) -> None:
    """Behind one, a text gets no space, unless the files ask for transformers' earlier way."""
    size, reference = processor().get_piece_size(), processor()
    added = {
        "0": {"content": "<unk>", "special": True},
        str(size): {"content": "<tool>", "special": False, "rstrip": True},
    }
    tokenizer = Tokenizer.from_directory(saved(tmp_path, added_tokens_decoder=added, pad_token="<pad>"))
    hello, world = reference.encode("hello"), reference.encode("world")
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.encode("</s>hello<tool>  <pad>", special=False) == [2, *hello[1:], size, size + 1]
    assert tokenizer.encode("hello<s>", special=False) == [*hello, 1]
    assert tokenizer.decode([*hello, 2, size, size + 1]) == "hello<tool>"
    old = Tokenizer.from_directory(saved(tmp_path, legacy=True, add_eos_token=True, add_bos_token=False))
    assert old.encode("hello</s>world") == [*hello, 2, *world, 2]
    assert old.added_token("<user>") == reference.piece_to_id("<user>")
    assert not old.is_special(reference.piece_to_id("<user>"))
    assert hello[0] == reference.piece_to_id("▁")
    alone = {str(size): {"content": "the", "single_word": True}}
    tokenizer = Tokenizer.from_directory(saved(tmp_path, added_tokens_decoder=alone))
    assert size not in tokenizer.encode("other")
    assert size in tokenizer.encode("a the b")


def test_a_t5_has_no_bos_and_further_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(saved(tmp_path, "unigram", tokenizer_class="T5Tokenizer", extra_ids=2))
    assert tokenizer.encode("hello<extra_id_0>") == [*processor("unigram").encode("hello"), tokenizer.vocab_size - 1, 2]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"tokenizer_class": "XLMRobertaTokenizer"},
            "XLMRobertaTokenizer is not known to have the ids of tokenizer.model",
        ),
        ({"add_prefix_space": False}, "add_prefix_space is False, but add_dummy_prefix of tokenizer.model is True"),
        ({"do_lower_case": True}, "do_lower_case is True, but tokenizer.model has no such step"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is {'enable_sampling': True}"),
        ({"add_bos_token": True, "bos_token": "<none>"}, "add_bos_token is true, but there is no token '<none>'"),
        ({"added_tokens_decoder": {"9999": {"content": "<far>"}}}, "'<far>' cannot have the id 9999"),
        ({"added_tokens_decoder": {"3": {"content": "<s>"}}}, "names a token as another piece"),
        ({"added_tokens_decoder": {"x": {"content": "<x>"}}}, "added_tokens_decoder must have objects .* not 'x'"),
        ({"added_tokens_decoder": {"3": "<x>"}}, "added_tokens_decoder must have objects .* not '3'"),
        ({"tokenizer_class": "T5Tokenizer", "extra_ids": "a"}, "extra_ids must be from 0 to 10000, not 'a'"),
        ({"bos_token": 5}, "a special token must be a text or an object with content, not 5"),
    ],
    ids=["class", "prefix", "lower case", "sampling", "bos", "id", "name", "no id", "no object", "count", "number"],
)
def test_what_has_other_ids_is_refused(config: dict[str, Any], says: str, tmp_path: Path) -> None:
    directory = saved(tmp_path, **config)
    with pytest.raises(ConfigError, match=says):
        Tokenizer.from_directory(directory)
    assert re.search(says, tokenizer_problem(directory))


def test_a_damaged_model_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path) / "tokenizer.model"
    path.write_bytes(trained("Llama")[:2000])
    with pytest.raises(ConfigError, match=f"{path} is not a SentencePiece model: it is damaged"):
        Tokenizer.from_directory(tmp_path)


def test_texts_begin_with_the_models_own_bos(tmp_path: Path) -> None:
    """Files need not name it: a Gemma has other pieces than a Llama."""
    assert Tokenizer.from_directory(saved(tmp_path, "Gemma")).encode("hello") == [
        2,
        *processor("Gemma").encode("hello"),
    ]


def test_half_a_surrogate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestRefusedError, match="tokenizer fails on this text"):
        Tokenizer.from_directory(saved(tmp_path)).encode("a\ud800")


def test_grammars_read_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(saved(tmp_path))
    params = SamplingParams(grammar=Grammar('start: "hello"', "here"))
    state = Constraints(tokenizer, tokenizer.vocab_size, frozenset({2})).start(params).result()
    taken: list[int] = []
    for _ in range(9):
        if 2 in taken:
            break
        allowed = np.flatnonzero(np.unpackbits(state.mask.view(np.uint8), bitorder="little"))
        taken.append(int(allowed[0]))
        follow([(state, taken[-1])])
    assert tokenizer.decode(taken) == "hello"


def test_no_copy_is_kept_of_what_the_library_encodes(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    first = load_tokenizer(saved(directory), tmp_path)
    assert (
        load_tokenizer(directory, tmp_path).encode("Hello 1")
        == first.encode("Hello 1")
        == [1, *processor().encode("Hello 1")]
    )
    assert list(tmp_path.iterdir()) == [directory]


def test_a_missing_library_is_named_also_next_to_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = saved(tmp_path)
    (directory / "vocab.json").write_text("{}")
    assert Tokenizer.from_directory(directory).encode("hello")[1:] == processor().encode("hello")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ConfigError, match="which the library sentencepiece reads: pip install sentencepiece"):
        Tokenizer.from_directory(directory)
