"""Write the grammar of calls of a request's tools, from their schemas as the caller sent them."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxgen.server.errors import bad_request
from jaxgen.server.requests.structured import usable_schema
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.grammar import TokenOf, call_grammar, harmony_calls
from jaxgen.server.tool_calls.grammar_rules import GrammarTooLongError, UnwritableError
from jaxgen.server.tool_calls.object_forms import TooManyFormsError
from jaxgen.server.tool_calls.recognised import HARMONY_CALLS
from jaxgen.text.grammar_compiler import MAX_LENGTH


def write_calls(
    name: str, tools: Sequence[tuple[str, Mapping[str, Any]]], token_of: TokenOf, *, several: bool, closed: bool
) -> str:
    """Return a grammar of tool calls, with the tools' names and schemas, in the format ``name``.

    ``closed``: objects of the arguments have only the keys that the schemas name. Raises ApiError 400.
    """
    schemas = [
        (tool, usable_schema(schema, "tools", closed=closed, lenient=True, what=f"parameters of {tool!r}"))
        for tool, schema in tools
    ]
    if name == HARMONY_CALLS:
        return harmony_calls(schemas, token_of)
    try:
        return call_grammar(FORMATS[name], schemas, several=several, token_of=token_of)
    except GrammarTooLongError as error:
        raise bad_request(
            f"tools: as a grammar they are longer than the limit of {MAX_LENGTH} characters. "
            "Send fewer or simpler tools.",
            "tools",
        ) from error
    except (UnwritableError, TooManyFormsError) as error:
        raise bad_request(f"tools: {error}.", "tools") from error
