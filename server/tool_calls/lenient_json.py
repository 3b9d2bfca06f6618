"""Write as JSON what models write that is nearly JSON.

That is: Python's quotes, words and numbers, line breaks in texts, keys and texts without quotes, comments, quotes in
texts, and commas, colons and brackets that are missing or too many.
"""

import json
import re
from typing import Literal

_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
_PYTHONS = frozenset({"True", "False", "None"})
_NO_VALUES = frozenset({"NaN", "-NaN", "Infinity", "-Infinity", "undefined"})
NOTHING = ("", "null", "[]")
"""What stands in place of an object without members."""
_ESCAPES = frozenset('"\\/bfnrt')
_QUOTES = {'"': '"', "'": "'", "\u201c": "\u201d"}
"""Marks with which a text begins, and the marks that end it."""
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSES = {"{": "}", "[": "]"}
_NUMBER = re.compile(r"([+-]?)(?:0*([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))([eE][+-]?[0-9]+)?")
_PYTHON_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[1-9][0-9]{0,15}(?:_[0-9]{1,16}){1,8})")

type _Next = Literal["key", "colon", "value", "end"]
"""What comes next within the innermost brackets; end: a comma or their end."""


class JsonWriter:
    """Takes characters of a value and returns JSON. What is JSON stays as it is, whatever else is passed on.

    Within brackets what is returned is valid JSON, whatever comes, once the brackets are closed.
    """

    def __init__(self) -> None:
        self.quote = ""
        """The mark that ends the text in which the last character is; empty: it is in none."""
        self.sure = True
        """Whether there is no doubt what is meant."""
        self._open: list[str] = []
        self._next: _Next = "value"
        self._has_comma = False
        self._held = ""
        """A word, whose end is not yet known; or the beginning of a comment."""
        self._spaces = ""
        """White space after what is held, and after a comma."""
        self._escape = ""
        """The part of an escape that was read, with its backslash."""
        self._ended = ""
        """The mark that was the end of a text, unless the text continues."""
        self._num_inner = 0
        """Marks within the text so far that would have ended it."""

    @property
    def depth(self) -> int:
        """The number of brackets that are open."""
        return len(self._open)

    def push(self, char: str) -> str:
        """Return what is certain with this character. A comma, a word, the end of a text and a backslash wait for what
        follows."""
        if self.quote:
            return self._in_text(char)
        if self._held[:2] in ("//", "/*"):
            return self._in_comment(char)
        if self._ended and not char.isspace():
            return self._after_text(char)
        if char.isspace():
            if self._held or self._ended or self._has_comma:
                self._spaces += char
                return ""
            return char
        if not self._open:
            return self._outside(char)
        return self._within_brackets(char)

    def finish(self) -> str:
        """Return what still waits."""
        end, self._ended = self._ended and '"', ""
        return self._flush() + end + self._take_spaces()

    def _outside(self, char: str) -> str:
        """Take a character that is within no brackets."""
        if char.isalnum() or char in "_+-.":
            before = self._flush() if self._spaces else ""
            self._held += char
            return before
        before = self._flush()
        if char in "{[":
            self._enter(char)
        elif char in _QUOTES:
            self.quote = _QUOTES[char]
            return f'{before}"'
        return before + char

    def _within_brackets(self, char: str) -> str:
        match char:
            case "{" | "[":
                before = self._flush()
                if self._open[-1] == "{" and self._next in ("key", "end"):
                    self.sure = False
                    return before
                before += self._separated()
                self._enter(char)
                return before + char
            case "}" | "]":
                return self._flush() + self._leave(char)
            case ",":
                return self._flush() + self._comma()
            case ":" if not (self._held and self._next == "value"):
                return self._flush() + self._colon()
            case "/" if self._spaces or not self._held:
                before, self._spaces = self._flush(), ""
                self._held = char
                return before
        if char in _QUOTES and (self._spaces or not self._held):
            before = self._flush() + self._separated()
            self.quote = _QUOTES[char]
            return f'{before}"'
        return self._in_word(char)

    def _in_word(self, char: str) -> str:
        """Take a character of a word, which may have spaces within it, or of the mark of a comment."""
        if self._held == "/" and not self._spaces and char in "/*":
            self._held += char
            return ""
        if self._held not in ("", "/"):
            self._held += self._take_spaces() + char
            return ""
        word = char if self._spaces else self._held + char
        self.sure &= word == char
        self._held, before = word, self._separated()
        return before

    def _enter(self, bracket: str) -> None:
        self._open.append(bracket)
        self._next = "key" if bracket == "{" else "value"
        self._has_comma = False

    def _leave(self, bracket: str) -> str:
        """Close brackets up to the one that this closes; it is left out if none is."""
        spaces = self._take_spaces()
        self._has_comma = False
        if bracket not in (_CLOSES[opening] for opening in self._open):
            self.sure = False
            return spaces
        written = spaces
        while True:
            ended = _CLOSES[self._open[-1]]
            written += self._completed() + ended
            self._open.pop()
            self._next = "end"
            if ended == bracket:
                return written
            self.sure = False

    def _comma(self) -> str:
        completed = self._completed()
        self._has_comma = self._next == "end"
        return completed

    def _colon(self) -> str:
        if self._next != "colon":
            self.sure = False
            return ""
        self._next = "value"
        return ":"

    def _completed(self) -> str:
        """Return null for a value that is missing behind its key."""
        if self._open[-1] == "[" or self._next not in ("colon", "value"):
            return ""
        colon = ":" if self._next == "colon" else ""
        self._next, self.sure = "end", False
        return f"{colon}null"

    def _separated(self) -> str:
        """Return the comma or the colon in front of a key or a value, with the white space behind it."""
        mark = ""
        if self._next == "end":
            mark, self._next = ",", "key" if self._open[-1] == "{" else "value"
            self.sure &= self._has_comma
        elif self._next == "colon":
            mark, self._next, self.sure = ":", "value", False
        self._has_comma = False
        return mark + self._take_spaces()

    def _advance(self) -> None:
        """Take note of the end of a key or a value."""
        if self._open:
            self._next = "colon" if self._next == "key" else "end"

    def _flush(self) -> str:
        """Return a word that is held as it is in JSON, with the white space behind it."""
        held, self._held = self._held, ""
        if not held:
            return ""
        if not self._open:
            held = _WORDS[held.lower()] if held in _PYTHONS else held
        elif held == "/":
            held, self.sure = "", False
        elif self._next == "key":
            held = json.dumps(held, ensure_ascii=False)
            self._advance()
        elif self._next == "value":
            held = self._value_of(held)
            self._advance()
        return held + self._take_spaces()

    def _value_of(self, word: str) -> str:
        """Return a word as a value: a text unless it is nearly another."""
        value = "null" if word in _NO_VALUES else _WORDS.get(word.lower(), as_number(word))
        if value != word or value in _WORDS or _NUMBER.fullmatch(value):
            return value
        self.sure = False
        return json.dumps(word, ensure_ascii=False)

    def _take_spaces(self) -> str:
        spaces, self._spaces = self._spaces, ""
        return spaces

    def _in_comment(self, char: str) -> str:
        is_line = self._held[:2] == "//"
        self._held = (self._held + char)[:2] if is_line else self._held[:2] + (self._held[2:] + char)[-2:]
        if char == "\n" if is_line else self._held == "/**/":
            self._held = ""
        return ""

    def _in_text(self, char: str) -> str:
        if self._escape:
            return self._in_escape(char)
        if char == "\\":
            self._escape = char
            return ""
        if char != self.quote:
            return _within(char)
        self.quote = ""
        if self._open and self._next == "value":
            self._ended = char
            return ""
        self._advance()
        return '"'

    def _in_escape(self, char: str) -> str:
        escape, self._escape = self._escape, ""
        if escape != "\\" or char == "u":
            if escape == "\\" or char in _HEX:
                escape += char
                self._escape = escape if len(escape) < len("\\u0000") else ""
                return "" if self._escape else escape
            return f"\\{escape}{self._in_text(char)}"
        if char in _ESCAPES:
            return f"\\{char}"
        return "'" if char == "'" else f"\\\\{_within(char)}"

    def _after_text(self, char: str) -> str:
        """Take what comes behind the end of a text: letters mean that the mark was one within it."""
        mark, self._ended = self._ended, ""
        is_inner = char.isalnum() and (not self._spaces or (self._num_inner % 2 and "\n" not in self._spaces))
        if is_inner:
            self._num_inner += 1
            self.quote, self.sure = mark, False
            return _within(mark) + self._take_spaces() + char
        self._num_inner = 0
        self._advance()
        return f'"{self._take_spaces()}' + self.push(char)


def as_number(text: str) -> str:
    """Return a number as JSON that is written as 1. or .5 or +1 or 007 or 0x1F; another text stays as it is."""
    if _PYTHON_INTEGER.fullmatch(text):
        return str(int(text, 0))
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
        written = as_json(str(json.loads(written)).strip(), sure=False)
    if written in NOTHING:
        return "{}"
    try:
        is_object = isinstance(json.loads(written), dict)
    except RecursionError:
        is_object = False
    if not is_object:
        raise ValueError("it is not an object")
    return written


def as_json(text: str, *, sure: bool = True) -> str:
    """Return a whole value as JSON, if it is nearly that; ``sure``: only where there is no doubt what is meant."""
    writer = JsonWriter()
    written = "".join(map(writer.push, text)) + writer.finish()
    return written if writer.sure or not sure else text


def _within(char: str) -> str:
    """Return a character as within quotes in JSON."""
    return json.dumps(char)[1:-1] if char < " " or char == '"' else char
