"""Write as JSON what models write that is nearly JSON: Python's quotes and words, and raw line breaks in texts."""

import json

_WORDS = {"True": "true", "False": "false", "None": "null"}
NOTHING = ("", "null", "[]")
"""What stands in place of an object without members."""
_ESCAPES = frozenset('"\\/bfnrtu')


class JsonWriter:
    """Takes characters of a value and returns JSON. What is JSON stays as it is, whatever else is passed on."""

    def __init__(self) -> None:
        self.quote = ""
        """The mark that ends the text in which the last character is; empty: it is in none."""
        self._escaped = False
        self._word = ""

    def push(self, char: str) -> str:
        """Return what is certain with this character. A word waits for its end, a backslash for what follows."""
        if self.quote:
            return self._in_text(char)
        if char.isalnum() or char == "_":
            self._word += char
            return ""
        before = self.finish()
        if char in "\"'":
            self.quote = char
            return f'{before}"'
        return before + char

    def finish(self) -> str:
        """Return the word that still waits."""
        word, self._word = self._word, ""
        return _WORDS.get(word, word)

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
