"""Grammars that demand calls of tools, in llguidance's Lark dialect."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxgen.server.tool_calls.formats import ToolFormat

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As chat templates write JSON, and none that is free, in which a small model could go on without end."""


def call_grammar(
    kind: ToolFormat,
    tools: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    several: bool,
    token_of: Callable[[str], int | None],
) -> str:
    """The grammar of messages of one call or, with ``several``, one or more, and nothing else.

    ``tools``: names with the JSON schemas of their arguments, which stay documents of their own, so that references
    within them hold. ``token_of``: the id of a token of its own with this text, if there is one; it is then demanded,
    since the same text in other tokens would not be what the model learnt.
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
    """The grammar of what one of two allows."""
    return f"start: first | second\nfirst: %lark {{\n{first}\n}}\nsecond: %lark {{\n{second}\n}}\n"


def _terminals(piece: str, markers: Sequence[str], token_of: Callable[[str], int | None]) -> str:
    """``piece`` as a sequence of strings and tokens."""
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
