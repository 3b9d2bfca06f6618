"""Make grammars of arguments whose texts are between marks of the format's own, and whose keys have no quotes.

``gemma4`` reads them. A text must not have the mark that ends it. What cannot be demanded in this form is JSON, which
is read as well: lists and objects that a schema lists, and lists with keywords that are not known here.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from jaxgen.server.tool_calls.formats import ToolFormat
from jaxgen.server.tool_calls.grammar_rules import Document, Rules, UnwritableError, literal, slashes, to_json
from jaxgen.server.tool_calls.object_forms import ObjectForm, object_forms
from jaxgen.server.tool_calls.typed_values import Schemas
from jaxgen.server.tool_calls.value_texts import AllowedTexts, texts_of

_ANY = "(?s:.*)"
_PLAIN_KEY = re.compile(r"[\w.$@+-]+")
_OTHER_KEY = "[A-Za-z_][A-Za-z0-9_.-]{0,63}"
_SAYS_NOTHING = frozenset(
    {"$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description", "examples", "title"}
)
_OF_LISTS = frozenset({"type", "nullable", "items", "minItems", "maxItems"})
_MOST_ITEMS = 1000
"""Largest bound of a list's length that is kept here."""
_MOST = 32
"""Most alternatives of one value; further ones are left out."""
_DEEPEST = 32
"""Values within each other that are written in the format's own form; deeper ones are JSON."""


class QuotedArguments:
    """Rules for the arguments of several tools."""

    def __init__(self, kind: ToolFormat, text: Callable[[str], str], options: Mapping[str, Any]) -> None:
        """``text``: writes a text of the format, in which markers may be tokens. ``options``: of JSON values."""
        self._rules = Rules()
        self._values: dict[tuple[Schemas, str], str | None] = {}
        self._mark = kind.quote
        self._quote = text(kind.quote)
        self._options = options
        self._depth = 0

    @property
    def rules(self) -> list[str]:
        """The rules so far."""
        return self._rules.lines

    def add(self, schema: Mapping[str, Any]) -> str:
        """Return the expression of one tool's arguments. Raises GrammarTooLongError, and UnwritableError."""
        schemas = Schemas(schema)
        return self._rules.named("arguments", self._object(schemas.root, schemas))

    def _object(self, schema: Any, schemas: Schemas) -> str:
        """Return the expression of an object. Raises UnwritableError."""
        forms = self._writable((self._form, form, schemas) for form in object_forms(schemas, schema))
        return f'"{{" ({" | ".join(forms)}) "}}"'

    def _form(self, form: ObjectForm, schemas: Schemas) -> str:
        """Return the expression of an object's members: named ones in their order, then others."""
        members = []
        for key, claims in form.members.items():
            try:
                members.append((f'{self._key(key)} ":" {self._all(claims, schemas)}', key in form.required))
            except UnwritableError as error:
                if key in form.required:
                    raise UnwritableError(f"the argument {key[:100]!r} is required, and cannot be written") from error
        more = ""
        if form.more is not None:
            try:
                value = self._all(form.more, schemas)
            except UnwritableError:
                return self._members(members, "")
            others = "|".join(map(literal, form.members)) or "[{}]"
            key = self._rules.named("TEXT", f"/{_OTHER_KEY}/ & ~/({others})/")
            more = self._rules.named("member", f'{key} ":" {value}')
        return self._members(members, more)

    def _members(self, members: list[tuple[str, bool]], more: str) -> str:
        """Return the expression of members, each with whether it is required, then any number of ``more``; with a comma
        between two."""
        rest = f'("," {more})*' if more else '""'
        after = [rest]
        for member, required in reversed(members):
            rest = self._rules.named("rest", f'("," {member}){"" if required else "?"} {rest}')
            after.append(rest)
        ways = []
        for (member, required), behind in zip(members, reversed(after[:-1]), strict=True):
            ways.append(f"{member} {behind}")
            if required:
                return " | ".join(ways)
        return " | ".join([*ways, f'({more} ("," {more})*)?' if more else '""'])

    def _key(self, key: str) -> str:
        if _PLAIN_KEY.fullmatch(key):
            return json.dumps(key)
        if self._mark in key:
            raise UnwritableError
        return f"{self._quote} {json.dumps(key)} {self._quote}"

    def _all(self, claims: tuple[Any, ...], schemas: Schemas) -> str:
        """Return a rule of a value of which all these schemas hold. Raises UnwritableError."""
        said = {to_json(claim): claim for claim in claims if claim is not True}
        if len(said) < 2:
            return self._value(next(iter(said.values()), {}), schemas)
        return self._value({"allOf": list(said.values())}, schemas)

    def _value(self, schema: Any, schemas: Schemas) -> str:
        """Return a rule of a value. Made once for equal schemas, so that it may lead back to itself. Raises
        UnwritableError."""
        asked = schemas, to_json(schema)
        if asked not in self._values:
            self._values[asked] = name = self._rules.reserved("value")
            self._depth += 1
            try:
                self._rules.define(name, self._new_value(schema, schemas))
            except UnwritableError:
                self._values[asked] = None
                self._rules.define(name, f'{name} "x"')  # no text has it
            self._depth -= 1
        known = self._values[asked]
        if known is None:
            raise UnwritableError("no value fits its schema")
        return known

    def _new_value(self, schema: Any, schemas: Schemas) -> str:
        if schema is False:
            raise UnwritableError
        if not isinstance(schema, Mapping):
            schema = {}
        said = {keyword: value for keyword, value in schema.items() if keyword not in _SAYS_NOTHING}
        kinds = schemas.kinds(schema)
        if self._depth > _DEEPEST:
            return self._json(schema, kinds, schemas)
        if (parts := _alternatives(said, schemas)) is not None:
            return " | ".join(self._writable((self._value, part, schemas) for part in parts))
        ways = [way for texts in texts_of(schema, schemas) if (way := self._texts(texts, schema, schemas))]
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            others = (value for value in values if not isinstance(value, str) and schemas.allows(value, schema))
            ways += [json.dumps(to_json(value)) for value in others]
        else:
            ways += self._others(said, schema, kinds, schemas)
        if not ways:
            raise UnwritableError
        return " | ".join(dict.fromkeys(ways))

    def _others(self, said: Mapping[str, Any], schema: Any, kinds: frozenset[str], schemas: Schemas) -> list[str]:
        """Return expressions of values other than texts."""
        ways = []
        if "object" in kinds:
            with suppress(UnwritableError):
                ways.append(self._object(schema, schemas))
        if "array" in kinds and said.keys() <= _OF_LISTS:
            ways += self._list(said, schemas)
        elif "array" in kinds:
            ways.append(self._json(schema, {"array"}, schemas))
        if plain := kinds - {"string", "object", "array"}:
            ways.append(self._json(schema, plain, schemas))
        return ways

    def _list(self, said: Mapping[str, Any], schemas: Schemas) -> list[str]:
        """Return the expressions of a list; none where there is no such list."""
        least, most = (_bound(said.get(name)) for name in ("minItems", "maxItems"))
        least = least or 0
        empty = [] if least else ['"[" "]"']
        if most == 0 or (most is not None and most < least):
            return empty
        try:
            item = self._value(said.get("items", {}), schemas)
        except UnwritableError:
            return empty
        more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        return [*empty, f'"[" {item} ("," {item}){more} "]"']

    def _json(self, schema: Any, kinds: Iterable[str], schemas: Schemas) -> str:
        """Return the expression of values of these kinds as JSON."""
        names = sorted(set(kinds) - ({"integer"} if "number" in kinds else set()))
        return f"%json {Document(schemas).text(schema, names, self._options)}"

    def _texts(self, texts: AllowedTexts, schema: Any, schemas: Schemas) -> str:
        """Return the expression of some texts with their marks; empty: there are none."""
        wanted = [f"({slashes(pattern)})" for pattern in texts.patterns]
        if texts.values is not None:
            values = [text for text in texts.values if self._mark not in text and schemas.allows(text, schema)]
            if not values:
                return ""
            wanted.append(f"({'|'.join(map(literal, values))})")
        ends = f"{_ANY}({literal(self._mark)}){_ANY}"
        terms = " & ".join([*(f"/{pattern}/" for pattern in wanted or [_ANY]), f"~/{ends}/"])
        if "<[" in self._quote:
            return f"{self._quote} {self._rules.named('TEXT', terms)} {self._quote}"
        return f"{self._quote} {self._rules.named(f'text[suffix={to_json(self._mark)}]', terms)}"

    def _writable(self, ways: Iterable[tuple[Any, ...]]) -> list[str]:
        """Return the expressions of the ways, each a method with what it takes, that can be written. Raises the last
        UnwritableError if none can."""
        found: dict[str, None] = {}
        last = UnwritableError("no arguments fit their schema")
        for way, *given in ways:
            try:
                found[way(*given)] = None
            except UnwritableError as error:
                last = error
        if not found:
            raise last
        return list(found)


def _alternatives(said: Mapping[str, Any], schemas: Schemas) -> list[Any] | None:
    """Return the schemas of which a schema is one, if it says nothing else; None: it does."""
    if len(said) != 1:
        return None
    ((keyword, value),) = said.items()
    if keyword == "$ref":
        return [schemas.follow(value)]
    several = isinstance(value, list) and bool(value)
    if several and (keyword in ("anyOf", "oneOf") or (keyword == "allOf" and len(value) == 1)):
        return list(value[:_MOST])
    return None


def _bound(value: Any) -> int | None:
    """Return a bound of a list's length; None: there is none that is kept."""
    return value if isinstance(value, int) and 0 <= value <= _MOST_ITEMS else None
