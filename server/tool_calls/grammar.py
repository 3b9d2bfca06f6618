"""Make grammars that require tool calls, in llguidance's Lark dialect."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxgen.server.tool_calls.formats import ToolFormat

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as in the JSON of chat templates. No space is optional: a small model could write it without end."""


def call_grammar(
    kind: ToolFormat,
    tools: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    several: bool,
    token_of: Callable[[str], int | None],
) -> str:
    """Return a grammar of messages with one call or, with ``several``, one or more, and nothing else.

    ``tools``: names with the JSON schemas of their arguments. Schemas stay separate documents, so that references
    within them hold. ``token_of``: returns the id of the single token with this text, or None. That token is required,
    since the model has not learnt the same text in other tokens.
    """
    names = [f"tool_{i}" for i in range(len(tools))]

    def text(piece: str) -> str:
        return _terminals(piece, kind.markers, token_of)

    more = f"({text(kind.separator)} call)*" if several else ""
    rules = [
        f"start: {text(kind.opening)} call {more} {text(kind.closing)}",
        f"call: {' | '.join(names)}",
    ]
    for rule, (name, schema) in zip(names, tools, strict=True):
        arguments = json.dumps({**schema, "type": "object", "x-guidance": _SPACING})
        rules.append(f"{rule}: {text(kind.before.replace('{name}', name))} %json {arguments} {text(kind.after)}")
    return "\n".join(rules) + "\n"


def either(first: str, second: str) -> str:
    """Return a grammar of the texts that one of two grammars allows."""
    return f"start: first | second\nfirst: %lark {{\n{first}\n}}\nsecond: %lark {{\n{second}\n}}\n"


def _terminals(piece: str, markers: Sequence[str], token_of: Callable[[str], int | None]) -> str:
    """Return ``piece`` as a sequence of strings and tokens in Lark."""
    found = []
    for part in re.split("(" + "|".join(map(re.escape, markers)) + ")", piece):
        token = token_of(part) if part in markers else None
        if token is not None:
            found.append(f"<[{token}]>")
        elif part.startswith(" ") and found:
            found += ['" "?', json.dumps(part[1:])]
        elif part:
            found.append(json.dumps(part))
    return " ".join(found)
