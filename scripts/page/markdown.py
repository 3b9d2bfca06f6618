"""Write pages in Markdown: paragraphs, lists and tables."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill

WIDTH = 120


def write_page(parts: Iterable[str], path: Path) -> None:
    """Write the parts that are not empty, with a line between them."""
    path.write_text(paragraphs(*parts).rstrip("\n") + "\n")


def paragraphs(*parts: str) -> str:
    """Join the parts that are not empty."""
    return "\n\n".join(part for part in parts if part)


def paragraph(text: str) -> str:
    return fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def point(text: str) -> str:
    return fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; all columns except the first are aligned to the right."""
    rule = f"|---|{'---:|' * (len(head) - 1)}"
    top, *body = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join((top, rule, *body))


def listed(names: Iterable[str]) -> str:
    """Return names as a list in a sentence: a, b and c."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
