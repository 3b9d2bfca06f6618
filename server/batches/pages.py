"""Read the lines of a batch's input file page by page."""

import sys
from dataclasses import dataclass
from pathlib import Path

PAGE_LINES = 64
PAGE_BYTES = 2**20
"""Bytes after which a page of lines ends; a longer line is the last of its page."""


@dataclass(frozen=True, slots=True)
class Page:
    """Lines with their numbers, from 0, as they are in the file; and the line and byte where the next page begins."""

    lines: tuple[tuple[int, bytes], ...] = ()
    line: int = 0
    offset: int = 0


def read_page(path: Path, line: int, offset: int, longest: int | None) -> Page | None:
    """Return the lines from ``line`` on, which begins at byte ``offset``; None at the file's end.

    Empty lines are left out, but counted in the numbers. A line of more than ``longest`` bytes is cut, but is still
    longer than that; None: none is cut. Raises OSError.
    """
    lines: list[tuple[int, bytes]] = []
    first, size = line, 0
    most = sys.maxsize if longest is None else longest + 1
    with path.open("rb") as file:
        file.seek(offset)
        while len(lines) < PAGE_LINES and size < PAGE_BYTES and (raw := file.readline(most)):
            size += len(raw)
            while len(raw) >= most and not raw.endswith(b"\n") and (rest := file.readline(2**16)):
                raw = raw[:most] + rest[-1:]
            if raw.strip():
                lines.append((line, raw))
            line += 1
        offset = file.tell()
    return None if line == first else Page(tuple(lines), line, offset)
