"""Read the chat template of a model directory."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser

from jaxgen.core.errors import ConfigError, HelperLostError
from jaxgen.core.model_info import ChatFormat
from jaxgen.files.text_files import read_text
from jaxgen.processes.helper import Target
from jaxgen.processes.helpers import for_conversations
from jaxgen.text.named_templates import TEMPLATE_NAMES
from jaxgen.text.template_cache import cached_answer

TEMPLATE_FILE = "chat_template.jinja"
PROCESSOR_TEMPLATE_FILE = "chat_template.json"
"""Of models of images and text, which transformers prefers to that of their tokenizer."""
TOOL_TEMPLATE_FILE = "additional_chat_templates/tool_use.jinja"
DEFAULT, WITH_TOOLS = "default", "tool_use"
TOKENIZER_CONFIG = "tokenizer_config.json"
_TOKENS_MAP = "special_tokens_map.json"
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_MARK = "\ufeff"
"""A byte order mark, which tools that copied a template from a file have kept in it."""


def read_chat_format(directory: Path, template: Path | None = None, cache: Path | None = None) -> ChatFormat | None:
    """Return the chat template: ``template``, else that of chat_template.jinja, chat_template.json or
    tokenizer_config.json, or None.

    ``cache``: the folder of what earlier starts found out of templates, if any.
    The latter three may come with a second template for conversations with tools. Raises ConfigError that names a file
    that cannot be read, and a template with a syntax error.
    """
    config = _read_config(directory / TOKENIZER_CONFIG)
    tokens = read_special_tokens(directory)
    if template is not None:
        if not template.exists():
            names = ", ".join(TEMPLATE_NAMES)
            raise ConfigError(f"--chat-template {template} is not a file or one of the built-in templates: {names}")
        text = _read_text(template)
        _check_syntax(text, f"--chat-template {template}", cache)
        return ChatFormat(text, tokens)
    of_processor = _read_config(directory / PROCESSOR_TEMPLATE_FILE)
    templates = _in_config(config.get("chat_template")) | _in_config(of_processor.get("chat_template"))
    templates |= _in_files(directory)
    for name in templates.keys() & {DEFAULT, WITH_TOOLS}:
        _check_syntax(templates[name], f"{directory} ({name})", cache)
    default = templates.get(DEFAULT)
    return None if default is None else ChatFormat(default, tokens, templates.get(WITH_TOOLS))


def read_special_tokens(directory: Path) -> dict[str, str]:
    """Return the texts of the special tokens that the tokenizer's files name: ``bos_token``, ``eos_token`` and so on.

    A name may have a text, or an object with one. Raises ConfigError that names a file that cannot be read.
    """
    config = _read_config(directory / _TOKENS_MAP) | _read_config(directory / TOKENIZER_CONFIG)
    texts = {name: _text_of(config.get(name)) for name in _TOKENS}
    return {name: text for name, text in texts.items() if text is not None}


def _in_config(field: Any) -> dict[str, str]:
    """Return templates by name, from a list of named templates, or from the default template alone."""
    named = field if isinstance(field, list) else [{"name": DEFAULT, "template": field}]
    pairs = [(entry.get("name"), entry.get("template")) for entry in named if isinstance(entry, dict)]
    return {name: text.removeprefix(_MARK) for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _in_files(directory: Path) -> dict[str, str]:
    files = {DEFAULT: directory / TEMPLATE_FILE, WITH_TOOLS: directory / TOOL_TEMPLATE_FILE}
    return {name: _read_text(file) for name, file in files.items() if file.is_file()}


def _text_of(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    text = _read_text(path)
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    return config if isinstance(config, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template or its tokens cannot be read from {path}: {error}") from error


class _Generation(Extension):
    """The block {% generation %} of transformers, which marks what a model wrote, for training."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        body: Sequence[Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return list(body)


def _check_syntax(text: str, source: str, cache: Path | None = None) -> None:
    """Raise ConfigError, which names ``source`` and the line, for a template that Jinja cannot compile."""
    cached_answer(cache, {"compiles": text}, lambda: _compiled(text, source))


def _compiled(text: str, source: str) -> str:
    """Return "yes", or raise as ``_check_syntax`` does.

    A helper process compiles the template, since Jinja computes what is constant in it (``10 ** 10 ** 8``).
    """
    work = for_conversations().submit(
        "", lambda helper: helper.call(_COMPILER, "fault", text, seconds=_COMPILE_SECONDS)
    )
    try:
        fault = work.result()
    except (TimeoutError, MemoryError) as error:
        what = "long" if isinstance(error, TimeoutError) else "much memory"
        raise ConfigError(f"{source}: the chat template takes too {what} to compile") from error
    except HelperLostError as error:
        raise ConfigError(f"{source}: the chat template was not compiled: {error}") from error
    if fault is not None:
        raise ConfigError(f"{source}: the chat template has an error in line {fault[0]}: {fault[1]}")
    return "yes"


class TemplateCompiler:
    """Compiles templates, in a helper process that ``_compiled`` calls."""

    def fault(self, text: str) -> tuple[int, str | None] | None:
        """Return the line of an error in a template, and its words; None: there is none."""
        environment = jinja2.Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"])
        try:
            environment.compile(text)
        except jinja2.TemplateSyntaxError as error:
            return error.lineno, error.message
        return None


_COMPILER = Target("jaxgen.weights.huggingface.chat_template:TemplateCompiler")
_COMPILE_SECONDS = 5.0
