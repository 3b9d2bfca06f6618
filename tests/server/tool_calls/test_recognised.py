"""Which parsers a model's answers get: by its chat template, by name, and what does not go together."""

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.server.app import create_app
from jaxgen.server.config import Answers, ServerConfig
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.flags.server_flags import server_config
from jaxgen.server.tool_calls.recognised import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    TOOL_SIGNS,
    AnswerFormat,
    answer_format,
    check_parsers,
    recognised,
)
from tests.support.server_app import fake_engine
from tests.support.tool_templates import BY_FORMAT, BY_REASONING, HARMONY, HERMES


@pytest.mark.parametrize("kind", sorted(BY_FORMAT))
def test_a_template_shows_its_format(kind: str) -> None:
    assert recognised(BY_FORMAT[kind], TOOL_SIGNS) == kind


@pytest.mark.parametrize("kind", sorted(BY_REASONING))
def test_a_template_shows_its_reasoning(kind: str) -> None:
    template = BY_REASONING[kind]
    assert answer_format(template, template, "auto", "auto").reasoning == kind
    assert answer_format(template, template, "auto", "none").reasoning is None
    assert answer_format(template, template, "none", "auto").reasoning == kind


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages }}",
        "<tool_call>\n<function=...>{% for k, v in tool_call.arguments | items %}",
        "<tool_call>{name}<arg_key>{% set args = call.arguments %}",
    ],
)
def test_other_templates_show_none(template: str) -> None:
    assert answer_format(template, template, "auto", "auto") == AnswerFormat(None, None)


@pytest.mark.parametrize(
    ("template", "tools", "reasoning", "found"),
    [
        (None, "auto", "auto", (None, None)),
        (None, "qwen3_coder", "glm45", ("qwen3_xml", "qwen3")),
        (None, "harmony", "auto", ("openai", None)),
        (HARMONY, "auto", "none", ("openai", None)),
        (HARMONY, "none", "auto", (None, "openai_gptoss")),
        (HARMONY, "hermes", "auto", ("hermes", None)),
        (HARMONY, "auto", "qwen3", (None, "qwen3")),
        (HERMES, "auto", "harmony", ("openai", "openai_gptoss")),
        (HERMES, "none", "none", (None, None)),
    ],
)
def test_names_go_before_what_a_template_shows(
    template: str | None, tools: str, reasoning: str, found: tuple[str | None, str | None]
) -> None:
    form = answer_format(template, template, tools, reasoning)
    assert (form.tools, form.reasoning) == found


def test_harmony_goes_with_itself_alone() -> None:
    with pytest.raises(
        ConfigError, match="tool_call_parser and reasoning_parser: openai and openai_gptoss must be used together"
    ):
        check_parsers("openai", "qwen3")
    with pytest.raises(ConfigError, match="not hermes with openai_gptoss"):
        check_parsers("hermes", "harmony")
    check_parsers("harmony", "openai_gptoss")


@pytest.mark.parametrize(
    ("name", "known"), [("tool_call_parser", TOOL_PARSERS), ("reasoning_parser", REASONING_PARSERS)]
)
def test_an_unknown_name_is_told_the_known_ones(name: str, known: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be one of {', '.join(known)}, not 'x'"):
        create_app(fake_engine(), ServerConfig(answers=Answers(**{name: "x"})))  # type: ignore[arg-type]


def test_flags_are_refused_before_a_model_is_loaded() -> None:
    args = make_parser().parse_args(["--tool-call-parser", "hermes", "--reasoning-parser", "openai_gptoss"])
    with pytest.raises(ConfigError, match="must be used together"):
        server_config(args)
