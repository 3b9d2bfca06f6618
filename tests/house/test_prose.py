"""Pages, docstrings and messages are in plain English: sentences are short, and known phrases do not come back."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from statistics import mean

import pytest

from tests.support.paths import ROOT

MEAN_WORDS = 14.0
LONG = 30
SHARE_OF_LONG = 0.05
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "*.md",
        *(f"{top}/**/*.md" for top in (".github", "scripts", "server", "tests/data", "weights")),
        "docs/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
"""All pages except a text that tests/real reads."""

BETTER = {
    r"\bso many\b": "the number, or 'N'",
    r"\banew\b": "'again'",
    r"\bto be had\b": "'available'",
    r"\bthose that\b": "the noun",
    r"\bmade-up\b": "'random' or 'example'",
    r"\bbeside\b": "'next to', 'with', 'plus' or 'compared with'",
    r"(?<!there )\b(?:is|are) no (?!longer\b|such\b|more\b)": "'is not a valid ...' or 'there is no ...'",
    r"\bwhat is more\b": "nothing",
    r"\bbut for\b": "'except'",
    r"\bto the bit\b": "'bit for bit'",
    r"\bcalls of tools\b": "'tool calls'",
    r"\bfew bits\b": "'quantized'",
    r"\bgoes on\b": "'continues' or 'resumes'",
    r"\bwhoever\b": "the person or program",
}
"""Phrases that stopped readers, and what says the same."""
KNOWN = re.compile("|".join(BETTER), re.IGNORECASE)


def prose(text: str) -> str:
    """Return a Markdown page without blocks of code and addresses; inline code is one word."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"[\1]", text)
    return re.sub(r"(`+)[^`]+\1", "`code`", text)


def sentences(text: str) -> list[str]:
    """Return the sentences of paragraphs and lists, without headings and tables."""
    lines = ["" if re.match(r"\s*(#|\|)", line) else line for line in prose(text).splitlines()]
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", "\n".join(lines))
    parts = [part for block in blocks for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"(*`\[])", " ".join(block.split()))]
    return [part for part in parts if len(part.split()) > 1]


def check_lengths(found: list[str], most: float) -> None:
    """Fail if more than a share ``most`` of the sentences is long."""
    longest = [sentence for sentence in found if len(sentence.split()) > LONG]
    assert len(longest) <= most * len(found), "\n".join(longest)


def phrases(text: str) -> list[str]:
    """Return the known phrases of a text, each with better words."""
    text = prose(text)
    if not KNOWN.search(text):
        return []
    return [
        f"{match[0]!r}: write {better}"
        for old, better in BETTER.items()
        for match in re.finditer(old, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("name", PAGES)
def test_sentences_are_short(name: str) -> None:
    found = sentences((ROOT / name).read_text(encoding="utf-8"))
    words = mean(len(sentence.split()) for sentence in found)
    assert words <= MEAN_WORDS, f"{words:.1f} words a sentence"
    check_lengths(found, SHARE_OF_LONG)


@pytest.mark.parametrize("name", PAGES)
def test_phrases_have_better_words(name: str) -> None:
    assert phrases((ROOT / name).read_text(encoding="utf-8")) == []


@cache
def modules(package: str) -> dict[str, str]:
    """Return the sources of a package by path."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / package).rglob("*.py"))}


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string of a module with a space in it, without docstrings: what users may read."""
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in docstrings and " " in str(node.value):
            yield node.lineno, str(node.value)


DOCSTRING = re.compile(r'(^ *r?)?"""(.*?)"""', re.DOTALL | re.MULTILINE)
"""A text in three quotes, with what is before it if it begins a line."""


def notes(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, and of each block of comments, of a module: what developers read."""
    for match in DOCSTRING.finditer(source):
        if match[1] is not None:
            yield source.count("\n", 0, match.start()) + 1, cleandoc(match[2])
    for match in re.finditer(r"(?:^ *# .*\n)+|  # .*$", source, re.MULTILINE):
        yield source.count("\n", 0, match.start()) + 1, re.sub(r"^ *# ", "", match[0], flags=re.MULTILINE)


@pytest.mark.parametrize("package", ["jaxgen", "server", "weights", "pallas_kernels"])
def test_messages_have_better_words(package: str) -> None:
    assert [
        f"{path}:{line}: {phrase}"
        for path, source in modules(package).items()
        for line, text in messages(source)
        for phrase in phrases(text)
    ] == []


@pytest.mark.parametrize("package", ["jaxgen", "server", "weights", "pallas_kernels", "scripts"])
def test_docstrings_and_comments_are_plain(package: str) -> None:
    found = [(path, line, text) for path, source in modules(package).items() for line, text in notes(source)]
    assert [f"{path}:{line}: {phrase}" for path, line, text in found for phrase in phrases(text)] == []
    check_lengths([one for _, _, text in found for one in sentences(text)], SHARE_OF_LONG)


def test_what_is_wrong_would_be_found() -> None:
    """A long sentence, one in a list, and a phrase in a table."""
    text = (
        "# A heading that is no sentence\n\nOne. "
        + "word " * 40
        + "end.\n\n- Three words here.\n\n| `a b` | beside |\n"
    )
    assert [len(sentence.split()) for sentence in sentences(text)] == [42, 4]
    assert re.search(r"\bbeside\b", prose(text))
    module = 'def f():\n    """It is no port."""\n    raise ValueError(f"{f} is no port")\n'
    assert list(messages(module)) == [(3, " is no port")]
    assert list(notes(f"{module}# One block\n# of comments.\nx = 1  # Another.\n")) == [
        (2, "It is no port."),
        (4, "One block\nof comments.\n"),
        (6, "Another."),
    ]
    assert phrases("It runs beside `beside` and ``beside``.") == ["'beside': write " + BETTER[r"\bbeside\b"]]
    with pytest.raises(AssertionError, match="word word"):
        check_lengths([*["Three words here."] * 18, "word " * 31], SHARE_OF_LONG)
    check_lengths([*["Three words here."] * 19, "word " * 31], SHARE_OF_LONG)
    is_no = next(old for old in BETTER if "is|are" in old)
    assert re.search(is_no, "it is no port")
    assert not re.search(is_no, "it is no longer there, and there is no other")
