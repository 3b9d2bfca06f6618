"""Write as JSON what models write that is nearly JSON.

That is: Python's quotes, words and numbers, line breaks in texts, keys without quotes, and commas too many.
"""

import json
import re

_WORDS = {"True": "true", "False": "false", "None": "null"}
_NO_VALUES = frozenset({"NaN", "-NaN", "Infinity", "-Infinity", "undefined"})
NOTHING = ("", "null", "[]")
"""What stands in place of an object without members."""
_ESCAPES = frozenset('"\\/bfnrtu')
_NUMBER = re.compile(r"([+-]?)(?:0*([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))([eE][+-]?[0-9]+)?")


class JsonWriter:
    """Takes characters of a value and returns JSON. What is JSON stays as it is, whatever else is passed on."""

    def __init__(self) -> None:
        self.quote = ""
        """The mark that ends the text in which the last character is; empty: it is in none."""
        self._escaped = False
        self._held = ""
        """A comma or a word, whose end or what follows is not yet known."""
        self._spaces = ""
        """White space after what is held."""
        self._depth = 0

    def push(self, char: str) -> str:
        """Return what is certain with this character. A comma and a word wait for what follows, and so does a
        backslash."""
        if self.quote:
            return self._in_text(char)
        if char.isspace():
            self._spaces += char if self._held else ""
            return "" if self._held else char
        if char.isalnum() or char in "_+-.":
            goes_on = self._held not in ("", ",") and not self._spaces
            before = "" if goes_on else self.finish()
            self._held += char
            return before
        before = self._before(char)
        if char == ",":
            self._held = char
            return before
        self._depth += (char in "{[") - (char in "}]")
        if char in "\"'":
            self.quote = char
            return f'{before}"'
        return before + char

    def finish(self) -> str:
        """Return what still waits."""
        return self._before("")

    def _before(self, char: str) -> str:
        """Return what is held as it is in front of a character: a comma is left out if nothing comes after it."""
        held, spaces = self._held, self._spaces
        self._held = self._spaces = ""
        if held == ",":
            return spaces if char and char in "}]," else held + spaces
        if held and self._depth:
            return (json.dumps(held, ensure_ascii=False) if char == ":" else _value_of(held)) + spaces
        return _WORDS.get(held, held) + spaces

    def _in_text(self, char: str) -> str:
        if self._escaped:
            self._escaped = False
            if char in _ESCAPES:
                return f"\\{char}"
            return "'" if char == "'" else f"\\\\{_within(char)}"
        if char == "\\":
            self._escaped = True
            return ""
        if char == self.quote:
            self.quote = ""
            return '"'
        return _within(char)


def _value_of(word: str) -> str:
    """Return a word as a value in JSON, if it is nearly one."""
    return "null" if word in _NO_VALUES else _WORDS.get(word, as_number(word))


def as_number(text: str) -> str:
    """Return a number as JSON that is written as 1. or .5 or +1 or 007; another text stays as it is."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    sign, whole, fraction, only_fraction, exponent = match.groups()
    fraction = only_fraction if fraction is None else fraction or "0"
    parts = ("-" if sign == "-" else "", whole or "0", "" if fraction is None else f".{fraction}", exponent or "")
    return "".join(parts)


def as_object(text: str) -> str:
    """Return the object that some models write in quotes, or leave out, as null or []. Raises ValueError for others."""
    written = as_json(text.strip())
    if written.startswith('"'):
        written = as_json(str(json.loads(written)).strip())
    if written in NOTHING:
        return "{}"
    try:
        is_object = isinstance(json.loads(written), dict)
    except RecursionError:
        is_object = False
    if not is_object:
        raise ValueError("it is not an object")
    return written


def as_json(text: str) -> str:
    """Return a whole value as JSON, if it is nearly that."""
    writer = JsonWriter()
    return "".join(map(writer.push, text)) + writer.finish()


def _within(char: str) -> str:
    """Return a character as within quotes in JSON."""
    return json.dumps(char)[1:-1] if char < " " or char == '"' else char
