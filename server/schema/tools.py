"""Tools in the bodies of requests: definitions, tool_choice and earlier calls."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from jaxgen.server.schema.base import Body, ListOf, PartOfHistory, fields_of

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}\z")]


class FunctionDefinition(PartOfHistory):
    """``parameters`` None: it takes none. ``strict`` asks for no more than is done anyway where a call is demanded."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(PartOfHistory):
    """A function of the caller's; other kinds of tools are refused by their names."""

    type: Literal["function"]
    function: FunctionDefinition

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, value: Any) -> Any:
        fields = fields_of(value) or {}
        kind = fields.get("type")
        if isinstance(kind, str) and kind != "function":
            inner = fields.get(kind)
            name = str((inner if isinstance(inner, dict) else fields).get("name", ""))[:100]
            raise PydanticCustomError(
                "no_function",
                "{kind} tools are not supported{name}: send a function with parameters",
                {"kind": kind[:100], "name": f", and {name!r} is one" if name else ""},
            )
        return value


def _no_other_kind(kind: Any) -> Any:
    if isinstance(kind, str) and kind != "function":
        raise PydanticCustomError(
            "no_function", "{kind} tools are not supported: name a function", {"kind": kind[:100]}
        )
    return kind


_Kind = BeforeValidator(_no_other_kind)


class FunctionChoice(Body):
    """The name of a function."""

    name: FunctionName


class NamedToolChoice(Body):
    """This function must be called."""

    type: Annotated[Literal["function"], _Kind]
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
    type: Annotated[Literal["function"] | None, _Kind] = None
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
