"""How requests become tokens, and answers end, is in the digest, wherever the files lie."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxgen.assembly import text_settings
from jaxgen.assembly.text_settings import TextSettings, own_text_settings, read_text_settings
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import ChatFormat, Pooling
from jaxgen.files.cache_dirs import CacheDirs
from jaxgen.text import turn_end
from jaxgen.text.named_templates import template_text
from jaxgen.text.tokenizer import Tokenizer
from jaxgen.text.tokenizer_cache import load_tokenizer
from jaxgen.weights.huggingface.config import read_eos_token_ids
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TextSettings:
    directory = tmp_path_factory.mktemp("model")
    make_tiny_checkpoint(directory)
    return own_text_settings(directory)


DIFFERENT = {
    "chat_template": lambda texts: replace(texts, chat=ChatFormat("{{ messages }}", {})),
    "eos_token_ids": lambda texts: replace(texts, eos_token_ids=texts.eos_token_ids | {9}),
    "sampling_defaults": lambda texts: replace(texts, defaults=replace(texts.defaults, top_k=7)),
    "pooling": lambda texts: replace(texts, pooling=Pooling.MEAN if texts.pooling is Pooling.LAST else Pooling.LAST),
}


@pytest.mark.parametrize("part", DIFFERENT)
def test_each_of_them_is_a_part(texts: TextSettings, part: str) -> None:
    before, after = texts.identity(), DIFFERENT[part](texts).identity()
    assert {name for name in before if before[name] != after[name]} == {part}


def test_the_tokenizer_is_its_files_contents(texts: TextSettings, tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path / "elsewhere")
    assert own_text_settings(tmp_path / "elsewhere").identity() == texts.identity()
    file = tmp_path / "elsewhere" / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    assert own_text_settings(tmp_path / "elsewhere").identity()["tokenizer"] != texts.identity()["tokenizer"]


def test_the_tokenizer_has_the_digest_of_the_files_it_was_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_checkpoint(tmp_path)
    _, texts = read_text_settings(tmp_path, 386, CacheDirs())
    assert texts == own_text_settings(tmp_path)
    file = tmp_path / "tokenizer.json"

    def replaced(*args: Any) -> Tokenizer:
        tokenizer = load_tokenizer(*args)
        file.write_text(file.read_text() + " ")
        return tokenizer

    monkeypatch.setattr(text_settings, "load_tokenizer", replaced)
    with pytest.raises(ConfigError, match=r"the text files in .* changed while being read"):
        read_text_settings(tmp_path, 386, CacheDirs())


def chat_model(directory: Path, template: str, *, special: bool = True, **files: Any) -> Path:
    """A model whose configuration names the base's end of a text alone, with tokens for turns in its tokenizer."""
    make_tiny_checkpoint(directory, vocab_size=386)
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    for token in tokenizer["added_tokens"][-2:]:
        token |= {"content": {384: "<|im_end|>", 385: "<|im_start|>"}[token["id"]], "special": special}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    for name, fields in files.items():
        file = directory / f"{name}.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        made = {key: value for key, value in {**known, **fields}.items() if value is not None}
        file.write_text(json.dumps(made))
    if template:
        (directory / "chat_template.jinja").write_text(template)
    return directory


CHATML = template_text("chatml")
EOS_TOKEN = "{% for m in messages %}{{ m.role + m.content + eos_token }}{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
IM_END = {
    "__type": "AddedToken",
    "content": "<|im_end|>",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
}


@pytest.mark.parametrize(
    ("template", "files", "others"),
    [
        # Only the tokenizer's files name it: as a text, as an object, in the older file.
        ("", {"tokenizer_config": {"eos_token": "<|im_end|>"}}, {384}),
        ("", {"tokenizer_config": {"eos_token": IM_END}}, {384}),
        ("", {"tokenizer_config": {"eos_token": None}, "special_tokens_map": {"eos_token": IM_END}}, {384}),
        (EOS_TOKEN, {"tokenizer_config": {"eos_token": "<|im_end|>"}}, {384}),
        # Only the template ends turns with it.
        (CHATML, {}, {384}),
        # Nothing else is named, or it is no token.
        ("", {}, set()),
        (PLAIN, {}, set()),
        (EOS_TOKEN, {}, set()),
        ("", {"tokenizer_config": {"eos_token": "<|nowhere|>"}}, set()),
        ("", {"tokenizer_config": {"eos_token": None}}, set()),
        ("{{ raise_exception('no') }}", {}, set()),
        ("{# <|channel|> #}" + CHATML, {}, set()),  # an answer has several messages
    ],
)
def test_answers_end_where_tokenizer_or_template_say(
    template: str, files: dict[str, Any], others: set[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    directory = chat_model(tmp_path / "model", template, **files)
    own = read_eos_token_ids(directory)
    _, texts = read_text_settings(directory, 386, CacheDirs())
    assert texts.eos_token_ids == own | others
    assert ("answers also end with <|im_end|>" in caplog.text) == bool(others)


def test_a_token_that_is_not_special_ends_a_turn_too(tmp_path: Path) -> None:
    _, texts = read_text_settings(chat_model(tmp_path / "model", CHATML, special=False), 386, CacheDirs())
    assert 384 in texts.eos_token_ids


def test_another_tokenizer_or_template_brings_its_end(tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model", "")
    other = chat_model(tmp_path / "other", "", tokenizer_config={"eos_token": "<|im_end|>"})
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML)
    assert 384 not in read_text_settings(model, 386, CacheDirs())[1].eos_token_ids
    assert 384 in read_text_settings(model, 386, CacheDirs(), tokenizer=str(other))[1].eos_token_ids
    assert 384 in read_text_settings(model, 386, CacheDirs(), chat_template=file)[1].eos_token_ids


def test_a_template_that_names_an_end_is_not_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering imports transformers, which costs each start half a second."""
    monkeypatch.setattr(turn_end, "AsideTemplate", None)
    directory = chat_model(tmp_path / "model", CHATML, generation_config={"eos_token_id": [1, 384]})
    assert 384 in read_text_settings(directory, 386, CacheDirs())[1].eos_token_ids
