"""Make grammars of arguments that have marks of their own and, if they are texts, no quotes.

``xml_formats`` reads the written text back to the same value. So the reader must not take a text for another value, and
a text must not have a mark that would end it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxgen.server.tool_calls.formats import ToolFormat
from jaxgen.server.tool_calls.grammar_rules import Document, Rules, UnwritableError, literal, slashes, to_json
from jaxgen.server.tool_calls.object_forms import ObjectForm, object_forms
from jaxgen.server.tool_calls.typed_values import TEXT, Schemas, typed
from jaxgen.server.tool_calls.value_texts import AllowedTexts, texts_of

_ANY = "(?s:.*)"
_PAD = r"[\s\x1c-\x1f]*"
_WORDS = {"null": ("null",), "boolean": ("true", "false")}
_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const", "$ref")
_NESTED = frozenset({"array", "object"})
_KEY = r"[^\s<>=]([^<>=\r\n]{0,62}[^\s<>=])?"


class MarkedArguments:
    """Rules for the arguments of several tools."""

    def __init__(self, kind: ToolFormat, text: Callable[[str], str], options: Mapping[str, Any]) -> None:
        """``text``: writes a text of the format, in which markers may be tokens. ``options``: of JSON values."""
        self._rules = Rules()
        self._values: dict[tuple[Schemas, str], str] = {}
        self._kind = kind
        self._text = text
        self._options = options
        before, _, self._after = kind.argument.partition("{value}")
        self._before, _, self._key_end = before.partition("{key}")

    @property
    def rules(self) -> list[str]:
        """The rules so far."""
        return self._rules.lines

    def add(self, schema: Mapping[str, Any]) -> str:
        """Return the expression of one tool's arguments. Raises GrammarTooLongError, and UnwritableError."""
        schemas = Schemas(schema)
        forms = [self._form(form, schemas) for form in object_forms(schemas, schemas.root)]
        if not forms:
            raise UnwritableError("no arguments fit their schema")
        return self._rules.named("arguments", " | ".join(dict.fromkeys(forms)))

    def _form(self, form: ObjectForm, schemas: Schemas) -> str:
        """Return the expression of an object: the named members in their order, then others."""
        uses = []
        for key, schemas_of_key in form.members.items():
            argument = self._argument(key, schemas_of_key, schemas)
            if not argument and key in form.required:
                never = any(claim is False for claim in schemas_of_key)
                why = "is required, and its schema is false" if never else "cannot be written in this model's format"
                raise UnwritableError(f"the argument {key[:100]!r} {why}")
            if argument:
                uses.append(argument if key in form.required else f"{argument}?")
        if form.more is not None and not any(claim is False for claim in form.more):
            others = "|".join(map(literal, form.members)) or "[<>]"
            name = self._rules.named("TEXT", f"/{_KEY}/ & ~/({others})/")
            value = self._value(_together(form.more), schemas)
            if not value:
                return " ".join(uses) or '""'
            more = f"{self._text(self._before)} {name} {self._text(self._key_end)} {value}"
            uses.append(f"{self._rules.named('argument', more)}*")
        return " ".join(uses) or '""'

    def _argument(self, key: str, claims: tuple[Any, ...], schemas: Schemas) -> str:
        """Return a rule of a key and its value; empty: the format cannot write it, or there is no such value."""
        if any(claim is False for claim in claims) or not re.fullmatch(_KEY, key):
            return ""
        value = self._value(_together(claims), schemas)
        return value and self._rules.named("argument", f"{self._text(f'{self._before}{key}{self._key_end}')} {value}")

    def _value(self, schema: Any, schemas: Schemas) -> str:
        """Return a rule of a value and the mark that ends it; empty: there is none. Made once for equal schemas."""
        asked = schemas, to_json(schema)
        if asked not in self._values:
            self._values[asked] = self._new_value(schema, schemas)
        return self._values[asked]

    def _new_value(self, schema: Any, schemas: Schemas) -> str:
        kinds, end = schemas.kinds(schema), self._text(self._after)
        others = kinds - {"string"}
        some = texts_of(schema, schemas)
        if some and others:
            others &= _NESTED
            some += _scalars(schema, schemas)
        ways = [way for texts in some if (way := self._texts(texts, schema, schemas))]
        if others:
            names = sorted(others - {"integer"} if "number" in others else others)
            ways.append(f"%json {Document(schemas).text(schema, names, self._options)} {end}")
        return self._rules.named("value", " | ".join(ways)) if ways else ""

    def _texts(self, texts: AllowedTexts, schema: Any, schemas: Schemas) -> str:
        """Return the expression of some texts and the mark after them; empty: there are none."""
        ends = self._kind.end_markers
        wanted = [f"({slashes(pattern)})" for pattern in texts.patterns]
        without: list[str] = []
        if texts.values is None:
            wanted = wanted or [_ANY]
            without = [f"{_ANY}({slashes(_unbounded(ends))}){_ANY}"]
            if not schemas.kinds(schema).isdisjoint(_NESTED):
                without.append(rf"{_PAD}[{{\[]{_ANY}")
            if not schemas.is_text(schema):
                without.append(rf'{_PAD}"([^"\\]|\\(?s:.))*"{_PAD}')
        else:
            values = [text for text in texts.values if self._is_read_back(text, schema, schemas, ends)]
            if not values:
                return ""
            wanted.append(f"({'|'.join(map(literal, values))})")
        terms = " & ".join([*(f"/{pattern}/" for pattern in wanted), *(f"~/{pattern}/" for pattern in without)])
        marks = self._text(self._after)
        if "<[" not in marks:
            return self._rules.named(f"text[suffix={to_json(self._after)}]", terms)
        return f"{self._rules.named('TEXT', terms)} {marks}"

    def _is_read_back(self, text: str, schema: Any, schemas: Schemas, ends: str) -> bool:
        """Whether a text is read as a whole, and as a value that the schema allows."""
        if self._after in text + self._after[:-1] or re.search(ends, text + self._after):
            return False
        if schemas.is_text(schema):
            return schemas.allows(text, schema)
        nested = not schemas.kinds(schema).isdisjoint(_NESTED) and text.lstrip().startswith(("{", "["))
        return not nested and (typed(text, schema, schemas) != to_json(text) or schemas.allows(text, schema))


def _scalars(schema: Any, schemas: Schemas) -> list[AllowedTexts]:
    """Return how values other than texts are written where texts are allowed too: as some of these, since a grammar
    cannot tell their beginnings apart. What is read as another value is one that the schema allows. Numbers that have
    bounds are left out; without any they are texts."""
    kinds = schemas.kinds(schema)
    words = [word for kind, some in _WORDS.items() if kind in kinds for word in some]
    result = [AllowedTexts(tuple(words))] if words else []
    if "number" in kinds and not any(f'"{name}"' in to_json(schema) for name in _BOUNDS):
        result.append(AllowedTexts(None, (_NUMBER,)))
    return result


def _unbounded(pattern: str) -> str:
    """Return a pattern without the bounds of its runs, each of which would be a state."""
    return re.sub(r"\{([01]),\d+\}", lambda match: "+" if match[1] == "1" else "*", pattern)


def _together(claims: tuple[Any, ...]) -> Any:
    """Return the schema of a value of which all these hold; TEXT: nothing is said of it."""
    if not claims:
        return TEXT
    schemas = [claim for claim in claims if claim is not True] or [{}]
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas}
