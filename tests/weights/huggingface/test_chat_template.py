"""Templates that Jinja cannot compile are refused when the model is opened."""

import json
from pathlib import Path

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.weights.huggingface.chat_template import _check_syntax, read_chat_format
from tests.support.tool_templates import BY_FORMAT

WRONG = [
    ("a\n{% for m in messages %}", "error in line 2", "endfor"),
    ("{{ messages", "error in line 1", "end of print statement"),
    ("\n\n{{ messages | no_such_filter }}", "error in line 3", "no_such_filter"),
    ("{% generation %}{{ messages }}", "error in line 1", "endgeneration"),
]


@pytest.mark.parametrize(("template", "line", "says"), WRONG)
def test_the_file_and_the_line_are_named(template: str, line: str, says: str, tmp_path: Path) -> None:
    given = tmp_path / "given.jinja"
    given.write_text(template)
    with pytest.raises(ConfigError, match=line) as caught:
        read_chat_format(tmp_path, given)
    assert str(caught.value).startswith(f"--chat-template {given}: ")
    assert says in str(caught.value)


def test_also_of_the_template_for_tools(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "fine"}, {"name": "tool_use", "template": "{% if %}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    with pytest.raises(ConfigError, match=r"\(tool_use\): the chat template has an error in line 1"):
        read_chat_format(tmp_path)


@pytest.mark.parametrize(
    "template", [*BY_FORMAT.values(), "{% for m in x %}{% generation %}{% endgeneration %}{% break %}{% endfor %}"]
)
def test_usual_templates_pass(template: str, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)
    found = read_chat_format(tmp_path)
    assert found is not None
    assert found.template == template


def test_a_processors_template_is_read_and_goes_before_the_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}))
    found = read_chat_format(tmp_path)
    assert found is not None
    assert found.template == "of the processor"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "of the tokenizer"}))
    assert read_chat_format(tmp_path) == found
    (tmp_path / "chat_template.jinja").write_text("of the file")
    newest = read_chat_format(tmp_path)
    assert newest is not None
    assert newest.template == "of the file"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_template(encoding: str, tmp_path: Path) -> None:
    given = tmp_path / "chat_template.jinja"
    given.write_text("é{{ messages }}", encoding=encoding)
    inside = json.dumps({"chat_template": "\ufeffé{{ messages }}"})
    for template in (given, None):
        found = read_chat_format(tmp_path, template)
        assert found is not None
        assert found.template == "é{{ messages }}"
    given.write_text("\ufeffé{{ messages }}", encoding=encoding)  # two of them
    found = read_chat_format(tmp_path)
    assert found is not None
    assert found.template == "é{{ messages }}"
    given.unlink()
    (tmp_path / "tokenizer_config.json").write_text(inside, encoding=encoding)
    found = read_chat_format(tmp_path)
    assert found is not None
    assert found.template == "é{{ messages }}"


@pytest.mark.parametrize("text", ["{", "[1]", '{"chat_template": 3}'])
def test_a_processors_template_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(text)
    if text == "{":
        with pytest.raises(ConfigError, match=r"chat_template\.json is not valid JSON"):
            read_chat_format(tmp_path)
    else:
        assert read_chat_format(tmp_path) is None


def test_an_unknown_filter_is_an_error_of_its_line() -> None:
    with pytest.raises(ConfigError, match="error in line 2"):
        _check_syntax("{{ 'a'|upper }}\n{{ 'a'|nonsense }}", "a file")
