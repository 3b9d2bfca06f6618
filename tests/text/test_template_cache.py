"""What was found out of a chat template is not asked again while template and libraries are the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import ChatFormat
from jaxgen.text import template_cache, turn_end
from jaxgen.text.rendered_aside import AsideTemplate
from jaxgen.text.template_cache import cached_answer
from jaxgen.text.tokenizer import Tokenizer
from jaxgen.weights.huggingface import chat_template
from jaxgen.weights.huggingface.chat_template import read_chat_format
from tests.support import tiny_tokenizers

CHAT = ChatFormat("{{ messages }}</s>", {})


class Asked:
    """Answers, and counts how often it is asked."""

    def __init__(self, answer: str | None) -> None:
        self.answer, self.times = answer, 0

    def __call__(self, *_: Any) -> str | None:
        self.times += 1
        return self.answer


@pytest.mark.parametrize("answer", ["</s>\n", ""])
def test_an_answer_is_kept_for_its_question_and_versions(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(answer)
    for question in ({"one": 1}, {"one": 1}, {"one": 2}):
        assert cached_answer(tmp_path, question, asked) == answer
    assert asked.times == 2
    monkeypatch.setattr(template_cache, "version", lambda name: f"{name} 99")
    assert cached_answer(tmp_path, {"one": 1}, asked) == answer
    assert asked.times == 3
    monkeypatch.setattr(template_cache, "_sources", lambda: "another jaxgen")
    assert cached_answer(tmp_path, {"one": 1}, asked) == answer
    assert asked.times == 4


def test_no_answer_is_not_kept_and_neither_is_anything_without_a_folder(tmp_path: Path) -> None:
    """A template that took too long may have met a busy machine."""
    for folder, answer in ((tmp_path, None), (None, "yes")):
        asked = Asked(answer)
        assert [cached_answer(folder, {}, asked) for _ in range(2)] == [answer, answer]
        assert asked.times == 2
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_answer_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked("yes")
    cached_answer(tmp_path, {}, asked)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace("yes", "yet"))
    assert cached_answer(tmp_path, {}, asked) == "yes"
    assert asked.times == 2
    assert str(path) in caplog.text


def test_a_start_asks_no_process_what_an_earlier_one_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, kept = tmp_path / "model", tmp_path / "kept"
    for folder in (model, kept):
        folder.mkdir()
    tokenizer = Tokenizer.from_directory(tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path / "tokenizer"))
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT.template}))

    def start(folder: Path | None) -> tuple[ChatFormat | None, int | None]:
        return read_chat_format(model, None, folder), turn_end.turn_end(CHAT, tokenizer, set(), folder)

    asked = Asked("</s>\n")
    monkeypatch.setattr(AsideTemplate, "after_answer", asked)
    found = start(kept)
    assert found[0] == CHAT
    monkeypatch.setattr(chat_template, "for_conversations", None)
    assert asked.times == 1
    monkeypatch.setattr(turn_end, "AsideTemplate", None)
    assert start(kept) == found
    with pytest.raises(TypeError):
        start(None)


def test_a_fault_is_told_each_time(tmp_path: Path) -> None:
    given = tmp_path / "given.jinja"
    given.write_text("{% if %}")
    (tmp_path / "kept").mkdir()
    for _ in range(2):
        with pytest.raises(ConfigError, match="error in line 1"):
            read_chat_format(tmp_path, given, tmp_path / "kept")
