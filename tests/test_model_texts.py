"""How requests become tokens, and answers end, is in the digest, wherever the files lie."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from jaxgen.core.model_info import ChatFormat, Pooling
from jaxgen.model_texts import ModelTexts, own_texts
from jaxgen.weights.tiny import make_tiny_checkpoint


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> ModelTexts:
    directory = tmp_path_factory.mktemp("model")
    make_tiny_checkpoint(directory)
    return own_texts(directory)


DIFFERENT = {
    "chat_template": lambda texts: replace(texts, chat=ChatFormat("{{ messages }}", {})),
    "eos_token_ids": lambda texts: replace(texts, eos_token_ids=texts.eos_token_ids | {9}),
    "sampling_defaults": lambda texts: replace(texts, defaults=replace(texts.defaults, top_k=7)),
    "pooling": lambda texts: replace(texts, pooling=Pooling.MEAN if texts.pooling is Pooling.LAST else Pooling.LAST),
}


@pytest.mark.parametrize("part", DIFFERENT)
def test_each_of_them_is_a_part(texts: ModelTexts, part: str) -> None:
    before, after = texts.identity(), DIFFERENT[part](texts).identity()
    assert {name for name in before if before[name] != after[name]} == {part}


def test_the_tokenizer_is_its_files_contents(texts: ModelTexts, tmp_path: Path) -> None:
    copy = shutil.copytree(texts.directory, tmp_path / "elsewhere")
    assert replace(texts, directory=copy).identity() == texts.identity()
    file = copy / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    assert replace(texts, directory=copy).identity()["tokenizer"] != texts.identity()["tokenizer"]
