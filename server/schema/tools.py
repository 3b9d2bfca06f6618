"""Tools in the bodies of requests: definitions, tool_choice and earlier calls."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from jaxgen.server.schema.base import Body, ListOf, PartOfHistory, fields_of

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}\z")]


class FunctionDefinition(PartOfHistory):
    """``parameters`` None: it takes none. ``strict`` asks for no more than is done anyway where a call is demanded."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(PartOfHistory):
    """A function of the caller's; other kinds of tools are refused."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionChoice(Body):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(Body):
    """This function must be called."""

    type: Literal["function"]
    function: FunctionChoice


class AllowedTools(PartOfHistory):
    """The only tools that may be called, or one of which must be."""

    mode: Literal["auto", "required"]
    tools: ListOf[NamedToolChoice]


class AllowedToolChoice(Body):
    """OpenAI's way to leave ``tools`` as they are, for the prefix cache, and to allow fewer."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Arguments = Annotated[
    Annotated[str, Tag(":text")] | Annotated[dict[str, Any], Tag(":object")],
    Discriminator(lambda value: ":object" if isinstance(value, dict) else ":text"),
]


class CalledFunction(PartOfHistory):
    """``arguments``: a text, as the model wrote it: mostly, but not surely, the JSON of an object. Some send the object
    itself."""

    name: str
    arguments: Arguments | None = None


class ToolCall(PartOfHistory):
    """A call in a message of the assistant's."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


ToolMode = Literal["none", "auto", "required"]


def choice_tag(value: Any) -> str:
    """Return pydantic's tag of a tool_choice: a mode or an object."""
    if isinstance(value, str):
        return ":mode"
    return ":allowed" if (fields_of(value) or {}).get("type") == "allowed_tools" else ":named"


ToolChoice = Annotated[
    Annotated[ToolMode, Tag(":mode")]
    | Annotated[NamedToolChoice, Tag(":named")]
    | Annotated[AllowedToolChoice, Tag(":allowed")],
    Discriminator(choice_tag),
]
