"""Resolve the tools of a request: which functions may be called, in which format, and whether a call is required."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jaxgen.core.sampling_params import Grammar
from jaxgen.server.errors import bad_request
from jaxgen.server.requests.grammars import call_grammar
from jaxgen.server.schema.tools import FunctionDefinition, ToolMode
from jaxgen.server.tool_calls.formats import FORMATS, ToolFormat
from jaxgen.server.tool_calls.harmony import NAMES
from jaxgen.server.tool_calls.recognised import HARMONY_CALLS, TOOL_SIGNS
from jaxgen.text.named_templates import TEMPLATE_NAMES

logger = logging.getLogger(__name__)

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

MAX_KINDS = 100
"""Most types of dropped tools that are told apart in the log: callers choose the names."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tool_choice of a request. ``name``: the one function that must be called, with mode ``required``."""

    mode: ToolMode
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request. ``kind``: how calls are written; None: in channels of harmony.

    ``most``: limit on calls in a message; None: no limit. ``grammar``: what calls must be, in llguidance's Lark; None:
    nothing constrains them. ``required``: the answer is calls and nothing else.
    """

    kind: ToolFormat | None
    functions: tuple[FunctionDefinition, ...]
    most: int | None
    grammar: str | None
    required: bool = False

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The JSON schemas of the functions' arguments, by name."""
        return {function.name: function.parameters or NO_PARAMETERS for function in self.functions}

    def for_template(self) -> list[dict[str, Any]]:
        """Return the functions for a chat template: JSON schemas, all with parameters."""
        return [for_template(function) for function in self.functions]


class Tools:
    """Knows the format in which the model writes calls, if any."""

    def __init__(self, name: str | None, token_of: Callable[[str], int | None]) -> None:
        """``name``: of the format; None: the model calls no tools. ``token_of``: the id of the token with this name."""
        self._format = name
        self._token_of = token_of

    async def use(
        self,
        functions: Sequence[FunctionDefinition],
        choice: ToolChoice,
        *,
        parallel: bool,
        answer: Grammar | None = None,
        closed: bool = True,
        caller: str = "",
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
                "tools: this model's chat template has no known format of tool calls. If it shows no tools, start the "
                f"server with --chat-template and one that fits the model: {', '.join(TEMPLATE_NAMES)}. Otherwise name "
                f"the format with --tool-call-parser: {', '.join(TOOL_SIGNS)}.",
                "tools",
            )
        several = parallel and choice.name is None
        required = choice.mode == "required"
        if answer is not None and not required and answer.source != "response_format":
            raise bad_request(
                f"{answer.source} cannot be combined with tools. Use response_format instead.", answer.source
            )
        grammar = None
        if required or answer is not None:
            named = [function for function in functions if choice.name in (None, function.name)]
            grammar = await self._call_grammar(named, several=several, closed=closed, caller=caller)
        return ToolUse(FORMATS.get(self._format), tuple(functions), None if several else 1, grammar, required)

    async def _call_grammar(
        self, functions: Sequence[FunctionDefinition], *, several: bool, closed: bool, caller: str
    ) -> str:
        """Return a grammar of calls of these functions."""
        assert self._format is not None
        tools = [(function.name, function.parameters or NO_PARAMETERS) for function in functions]
        marks = NAMES if self._format == HARMONY_CALLS else FORMATS[self._format].markers
        tokens = {mark: token for mark in marks if (token := self._token_of(mark)) is not None}
        return await call_grammar(self._format, tools, tokens, several=several, closed=closed, caller=caller)


def only_allowed(
    functions: Sequence[FunctionDefinition], names: Iterable[str | None], field: str
) -> list[FunctionDefinition]:
    """Return the functions with these names. Raises ApiError 400 that names the ``field`` of a name that none has."""
    allowed = set(names)
    if unknown := allowed - {function.name for function in functions}:
        raise bad_request(
            f"{field}: {', '.join(map(repr, sorted(map(str, unknown))))[:200]} is not one of the tools.", field
        )
    return [function for function in functions if function.name in allowed]


@cache
def _said() -> set[str]:
    return set()


def say_dropped(kind: str) -> None:
    """Log that tools of a type are not there for the model, once for each type."""
    if kind not in _said() and len(_said()) < MAX_KINDS:
        _said().add(kind)
        logger.warning("tools of the type %r are dropped: only functions can be called here", kind)


def _check(functions: Sequence[FunctionDefinition], choice: ToolChoice) -> None:
    names: set[str] = set()
    for function in functions:
        if function.name in names:
            raise bad_request(f"tools: {function.name!r} is there twice: each name must be unique.", "tools")
        names.add(function.name)
        if (function.parameters or NO_PARAMETERS).get("type", "object") != "object":
            raise bad_request(f"tools: parameters of {function.name!r} must be the JSON schema of an object.", "tools")
    if choice.mode == "required" and not functions:
        raise bad_request("tool_choice requires a call, but tools is empty.", "tool_choice")
    if choice.name is not None and choice.name not in names:
        raise bad_request(f"tool_choice: {choice.name!r} is not one of the tools.", "tool_choice")


def for_template(function: FunctionDefinition) -> dict[str, Any]:
    """Return a function for a chat template: with description and parameters, which some templates use unchecked."""
    shown = {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or NO_PARAMETERS,
    }
    return {"type": "function", "function": shown}
