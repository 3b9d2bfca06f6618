"""Parts of grammars of arguments: named rules, JSON documents of their own, and regular expressions."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jaxgen.server.tool_calls.typed_values import KINDS, Schemas
from jaxgen.text.grammar_compiler import MAX_LENGTH

_DATA = ("enum", "const", "default", "examples")
_MAPS = ("properties", "patternProperties", "dependentSchemas")


class GrammarTooLongError(ValueError):
    """The rules would be longer than any grammar may be."""


class UnwritableError(ValueError):
    """The format cannot write an argument that is required."""


class Rules:
    """Rules and terminals of one grammar. Those with the same text are there once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._length = 0

    def named(self, kind: str, expression: str) -> str:
        """Return the name of the rule, or terminal, with this expression, which is added if it is new. Raises
        GrammarTooLongError."""
        if expression not in self._names:
            kind, _, attributes = kind.partition("[")
            self._names[expression] = name = f"{kind}_{len(self._names)}"
            self.define(f"{name}{attributes and '['}{attributes}", expression)
        return self._names[expression]

    def reserved(self, kind: str) -> str:
        """Return the name of a rule that is defined later, so that it can refer to itself."""
        name = f"{kind}_{len(self._names)}"
        self._names[f"{name} itself"] = name
        return name

    def define(self, name: str, expression: str) -> None:
        """Add a rule. Raises GrammarTooLongError."""
        self.lines.append(f"{name}: {expression}")
        self._length += len(self.lines[-1])
        if self._length > MAX_LENGTH:
            raise GrammarTooLongError


class Document:
    """A schema as a JSON document of its own, with what it refers to."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._names: dict[str, str] = {}
        self._waiting: list[str] = []

    def text(self, schema: Any, kinds: list[str], options: Mapping[str, Any]) -> str:
        """Return the document of values of these kinds alone. Raises GrammarTooLongError."""
        copied = self._copied(schema) if isinstance(schema, Mapping) else {}
        definitions: dict[str, Any] = {}
        length = 0
        while self._waiting:
            reference = self._waiting.pop()
            target = self._schemas.follow(reference)
            definition = self._copied(target) if isinstance(target, Mapping | bool) else {}
            definitions[self._names[reference]] = definition
            length += len(to_json(definition))
            if length > MAX_LENGTH:
                raise GrammarTooLongError
        if KINDS - set(kinds) - {"integer"}:
            copied["type"] = kinds
        return to_json({**copied, **({"$defs": definitions} if definitions else {}), "x-guidance": options})

    def _copied(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._copied(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        result: dict[str, Any] = {}
        for keyword, entry in value.items():
            if keyword == "$ref" and isinstance(entry, str):
                result[keyword] = f"#/$defs/{self._name(entry)}"
            elif keyword in _MAPS and isinstance(entry, Mapping):
                result[keyword] = {name: self._copied(inner) for name, inner in entry.items()}
            elif keyword not in ("$defs", "definitions"):
                result[keyword] = entry if keyword in _DATA else self._copied(entry)
        return result

    def _name(self, reference: str) -> str:
        if reference not in self._names:
            self._names[reference] = str(len(self._names))
            self._waiting.append(reference)
        return self._names[reference]


def to_json(value: Any) -> str:
    """Return the JSON of a value."""
    return json.dumps(value, ensure_ascii=False)


def literal(text: str) -> str:
    """Return a text as a regular expression between slashes."""
    return slashes(re.sub(r"([^\w\s<>=/-])", r"\\\1", text).replace("\n", "\\n").replace("\r", "\\r"))


def slashes(pattern: str) -> str:
    """Return a regular expression so that it can stand between slashes."""
    return re.sub(r"(?<!\\)/", r"\\/", pattern).replace("\n", "\\n").replace("\r", "\\r")
