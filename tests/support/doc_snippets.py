"""Blocks of code of pages, to be run as they are written. Python 3.11, without jaxgen: clients' environments use it."""

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

URL = "http://127.0.0.1:8000"
"""Of the server in the pages' code."""
EMBEDDING_URL = "http://127.0.0.1:8001"
"""Of the second server, where there are two."""


def snippets(page: Path, language: str, heading: str = "") -> list[str]:
    """The blocks in a language. ``heading``: only those below it, up to the next heading of its level or a higher."""
    found: list[str] = []
    code: list[str] | None = None
    wanted, name = not heading, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if code is not None and wanted and name == language:
                found.append("\n".join(code) + "\n")
            code, name = ([], line[3:]) if code is None else (None, "")
        elif code is not None:
            code.append(line)
        elif heading and line.startswith("#"):
            level = len(line) - len(line.lstrip("#"))
            wanted = line == heading or (wanted and level > len(heading.partition(" ")[0]))
    assert found, f"{page.name} has no {language} below {heading!r}"
    return found


def commands(page: Path, heading: str = "") -> list[str]:
    """The shell commands without comments; a line that ends with a backslash has the next."""
    lines = "".join(snippets(page, "sh", heading)).replace("\\\n", " ").splitlines()
    return [line.partition("  # ")[0].strip() for line in lines if line.strip()]


def run_python(blocks: Iterable[str], places: dict[str, str], names: dict[str, Any] | None = None) -> list[str]:
    """What each of these programs prints; they share their variables, and what those have open is closed at the end.

    ``places``: URLs of servers, and names of models, by what the page has instead; ``names``: gets the variables.
    """
    names, said = {} if names is None else names, []
    try:
        for code in blocks:
            for written, real in places.items():
                code = code.replace(written, real)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "snippet", "exec"), names)
            said.append(printed.getvalue())
    finally:
        for value in names.values():
            if not isinstance(value, type | ModuleType) and hasattr(value, "close"):
                value.close()
    return said
