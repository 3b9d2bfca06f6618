"""Resolve the tools of a request: which functions may be called, in which format, and whether a call is required."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxgen.client import EngineClient
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.sampling_params import Grammar
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import bad_request
from jaxgen.server.requests.structured import without_other_keys
from jaxgen.server.schema.tools import FunctionDefinition, ToolMode
from jaxgen.server.tool_calls.formats import FORMATS, ToolFormat, recognised
from jaxgen.server.tool_calls.grammar import call_grammar, either
from jaxgen.server.tool_calls.parser import ToolParser

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tool_choice of a request. ``name``: the one function that must be called, with mode ``required``."""

    mode: ToolMode
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How one request uses tools. ``most``: limit on calls in a message; None: no limit.

    ``shown``: special tokens that decoding keeps in its text. ``grammar``: constrains its text; None: any text.
    ``required``: its text is calls and nothing else.
    """

    kind: ToolFormat
    functions: tuple[FunctionDefinition, ...]
    most: int | None
    shown: frozenset[int]
    grammar: Grammar | None
    required: bool = False

    def parser(self) -> ToolParser:
        """Return a new parser for one message."""
        names = frozenset(function.name for function in self.functions)
        return ToolParser(self.kind, names, self.most, only_calls=self.required)

    def for_template(self) -> list[dict[str, Any]]:
        """Return the functions for a chat template: JSON schemas, all with parameters."""
        return [for_template(function) for function in self.functions]


def tool_format(model: ModelInfo, config: ServerConfig) -> str | None:
    """Return the name of the format in which the model writes calls; None if it is not known."""
    if config.tool_call_parser != "auto":
        return config.tool_call_parser
    return None if model.chat is None else recognised(model.chat.template_for(tools=True))


class Tools:
    """Knows the format in which the model writes calls, if any."""

    def __init__(self, engine: EngineClient, config: ServerConfig) -> None:
        self._format = tool_format(engine.model, config)
        self._tokenizer = engine.tokenizer

    def use(
        self,
        functions: Sequence[FunctionDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        answer: Grammar | None = None,
        closed: bool = True,
    ) -> ToolUse | None:
        """Return how a request uses these tools; None where it uses none. ``answer``: grammar of a text without calls.
        ``closed``: objects of the arguments have only the keys that the schemas name.

        Raises ApiError 400 that names ``tools``, ``tool_choice`` or the field that the ``answer`` comes from.
        """
        _check(functions, choice)
        if not functions or choice.mode == "none":
            return None
        if self._format is None:
            raise bad_request(
                "tools: this model's chat template shows no format of tool calls that this server reads; name one "
                f"with --tool-call-parser ({', '.join(FORMATS)}) if it writes that.",
                "tools",
            )
        kind, token_of = FORMATS[self._format], self._tokenizer.added_token
        several = parallel and choice.name is None
        grammar = None
        required = choice.mode == "required"
        if required or answer is not None:
            named = [function for function in functions if choice.name in (None, function.name)]
            schemas = [(function.name, function.parameters or NO_PARAMETERS) for function in named]
            if closed:
                schemas = [(name, without_other_keys(schema, "tools")) for name, schema in schemas]
            calls = call_grammar(kind, schemas, several=several, token_of=token_of)
            grammar = _with_calls(None if required else answer, calls)
        shown = frozenset(token for marker in kind.markers if (token := token_of(marker)) is not None)
        return ToolUse(kind, tuple(functions), None if several else 1, shown, grammar, required)


def _check(functions: Sequence[FunctionDefinition], choice: ToolChoice) -> None:
    names: set[str] = set()
    for function in functions:
        if function.name in names:
            raise bad_request(f"tools: {function.name!r} is there twice.", "tools")
        names.add(function.name)
        if (function.parameters or NO_PARAMETERS).get("type", "object") != "object":
            raise bad_request(f"tools: parameters of {function.name!r} must be the JSON schema of an object.", "tools")
    if choice.mode == "required" and not functions:
        raise bad_request("tool_choice: a call is demanded, but tools names nothing to call.", "tool_choice")
    if choice.name is not None and choice.name not in names:
        raise bad_request(f"tool_choice: {choice.name!r} is none of the tools.", "tool_choice")


def _with_calls(answer: Grammar | None, calls: str) -> Grammar:
    """Return a grammar of the ``answer`` or of calls; ``answer`` None: of calls alone."""
    if answer is None:
        return Grammar(calls, "tools")
    if answer.source != "response_format":
        raise bad_request(f"{answer.source} cannot go with tools; response_format can.", answer.source)
    return Grammar(either(answer.text, calls), answer.source)


def for_template(function: FunctionDefinition) -> dict[str, Any]:
    """Return a function for a chat template: with description and parameters, which some templates use unchecked."""
    shown = {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or NO_PARAMETERS,
    }
    return {"type": "function", "function": shown}
