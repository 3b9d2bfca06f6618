"""Make grammars that require tool calls, and grammars of answers after reasoning, in llguidance's Lark dialect."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxgen.server.tool_calls.formats import ToolFormat
from jaxgen.server.tool_calls.harmony import NAMES
from jaxgen.server.tool_calls.marked_arguments import MarkedArguments
from jaxgen.server.tool_calls.quoted_arguments import QuotedArguments
from jaxgen.server.tool_calls.thinking import ThinkMarks

_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": True,
    "coerce_one_of": True,
}
"""Keywords that no grammar holds are left out, since tools are often those of others. White space is as in the JSON of
chat templates. No space is optional: a small model could write it without end."""

_TEXT = "/(?s:.*)/"

type TokenOf = Callable[[str], int | None]
"""Returns the id of the single token with a text, or None. A mark that is one is required as that token, since the
model has not learnt the same text in other tokens."""


def call_grammar(
    kind: ToolFormat,
    tools: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    several: bool,
    token_of: TokenOf,
) -> str:
    """Return a grammar of messages with one call or, with ``several``, one or more, and nothing else.

    ``tools``: names with the JSON schemas of their arguments. Schemas stay separate documents, so that references
    within them hold. Raises GrammarTooLongError, and UnwritableError for arguments that the format cannot write.
    """
    names = [f"tool_{i}" for i in range(len(tools))]

    def text(piece: str) -> str:
        return _terminals(piece, kind.markers, token_of)

    more = f"({text(kind.separator)} call)*" if several else ""
    rules = [
        f"start: {text(kind.opening)} call {more} {text(kind.closing)}",
        f"call: {' | '.join(names)}",
    ]
    own = QuotedArguments(kind, text, _OPTIONS) if kind.quote else MarkedArguments(kind, text, _OPTIONS)
    for rule, (name, schema) in zip(names, tools, strict=True):
        arguments = own.add(schema) if kind.argument or kind.quote else _json(schema)
        before, after = text(kind.before.replace("{name}", name)), text(kind.after)
        rules.append(f"{rule}: {before} {arguments} {after}")
    rules += own.rules
    return "\n".join(rules) + "\n"


def either(first: str, second: str) -> str:
    """Return a grammar of the texts that one of two grammars allows."""
    return f"start: first | second\nfirst: %lark {{\n{first}\n}}\nsecond: %lark {{\n{second}\n}}\n"


def after_thinking(answer: str, marks: ThinkMarks, token_of: TokenOf, *, inside: bool) -> str:
    """Return a grammar of reasoning, then texts of the grammar ``answer``.

    ``inside``: the prompt has opened the reasoning; else there may be none.
    """
    opened = "" if inside else _terminals(marks.begin, marks.tokens, token_of)
    rules = [
        f"start: {'thought GAP?' if inside else '(thought GAP?)?'} answer",
        f"thought: {opened} reasoning",
        *_text_up_to(marks.end, "reasoning", lambda piece: _terminals(piece, marks.tokens, token_of)),
        "GAP: /[ \\n]{1,4}/",
        f"answer: %lark {{\n{answer}\n}}",
    ]
    return "\n".join(rules) + "\n"


def harmony_calls(tools: Sequence[tuple[str, Mapping[str, Any]]], token_of: TokenOf) -> str:
    """Return a grammar of one call in harmony, from the channel on: an answer there ends with its first call."""
    names = [f"tool_{i}" for i in range(len(tools))]
    rules = [f"start: {' | '.join(names)}"]
    for rule, (name, schema) in zip(names, tools, strict=True):
        header = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        rules.append(f"{rule}: {_terminals(header, NAMES, token_of)} {_json({**schema, 'type': 'object'})}")
    return "\n".join(rules) + "\n"


def harmony_answer(content: str | None, calls: str | None, token_of: TokenOf) -> str:
    """Return a grammar of an answer in harmony after ``<|start|>assistant``.

    It allows an optional analysis, then either the final channel with a text of the grammar ``content``, or calls of
    the grammar ``calls``, as far as these are given.
    """

    def text(piece: str) -> str:
        return _terminals(piece, NAMES, token_of)

    parts = {"content": content, "calls": calls}
    rules = [
        f"start: analysis? ({' | '.join(name for name, part in parts.items() if part is not None)})",
        f"analysis: {text('<|channel|>analysis<|message|>')} {_TEXT} {text('<|end|><|start|>assistant')}",
    ]
    if content is not None:
        header = f"{text('<|channel|>final')} ({text(' <|constrain|>json')})? {text('<|message|>')}"
        rules.append(f"content: {header} %lark {{\n{content}\n}}")
    if calls is not None:
        rules.append(f"calls: %lark {{\n{calls}\n}}")
    return "\n".join(rules) + "\n"


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'type': 'object', 'x-guidance': _OPTIONS})}"


def _text_up_to(end: str, rule: str, text: Callable[[str], str]) -> list[str]:
    """Return a rule of any text up to and with the first ``end``, and the rules that it needs.

    A token in ``end`` is not text, in which it would be found by its characters.
    """
    marks = text(end)
    if marks == json.dumps(end):
        return [f"{rule}[suffix={marks}]: {_TEXT}"]
    return [f"{rule}: {rule}_text | {_TEXT} {marks}", f"{rule}_text[suffix={json.dumps(end)}]: {_TEXT}"]


def _terminals(piece: str, markers: Sequence[str], token_of: Callable[[str], int | None]) -> str:
    """Return ``piece`` as a sequence of strings and tokens in Lark."""
    terminals = []
    for part in re.split("(" + "|".join(map(re.escape, markers)) + ")", piece):
        token = token_of(part) if part in markers else None
        if token is not None:
            terminals.append(f"<[{token}]>")
        elif part.startswith(" ") and terminals:
            terminals += ['" "?', json.dumps(part[1:])]
        elif part:
            terminals.append(json.dumps(part))
    return " ".join(terminals)
