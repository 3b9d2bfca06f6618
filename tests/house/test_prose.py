"""Pages are in plain English: sentences are short, and known detours of language do not come back."""

import ast
import re
from collections.abc import Iterator
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
        "docs/*.md",
    )
    for path in ROOT.glob(pattern)
)
"""All pages except docs/reports, whose dated pages are records, and a text that tests/real reads."""

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


def prose(text: str) -> str:
    """Return a Markdown page without blocks of code and addresses; inline code is one word."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"[\1]", text)
    return re.sub(r"`[^`]*`", "`code`", text)


def sentences(text: str) -> list[str]:
    """Return the sentences of paragraphs and lists, without headings and tables."""
    lines = ["" if re.match(r"\s*(#|\|)", line) else line for line in prose(text).splitlines()]
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", "\n".join(lines))
    parts = [part for block in blocks for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"(*`\[])", " ".join(block.split()))]
    return [part for part in parts if len(part.split()) > 1]


@pytest.mark.parametrize("name", PAGES)
def test_sentences_are_short(name: str) -> None:
    lengths = [len(sentence.split()) for sentence in sentences((ROOT / name).read_text(encoding="utf-8"))]
    longest = [sentence for sentence in sentences((ROOT / name).read_text()) if len(sentence.split()) > LONG]
    assert not lengths or mean(lengths) <= MEAN_WORDS, f"{mean(lengths):.1f} words a sentence"
    assert len(longest) <= SHARE_OF_LONG * len(lengths), "\n".join(longest)


@pytest.mark.parametrize("name", PAGES)
def test_phrases_have_better_words(name: str) -> None:
    text = prose((ROOT / name).read_text(encoding="utf-8"))
    found = [
        f"{match[0]!r}: write {better}"
        for old, better in BETTER.items()
        for match in re.finditer(old, text, re.IGNORECASE)
    ]
    assert found == []


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string of a module with a space in it, without docstrings: what users may read."""
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in docstrings and " " in str(node.value):
            yield node.lineno, str(node.value)


@pytest.mark.parametrize("package", ["jaxgen", "server", "weights", "pallas_kernels"])
def test_messages_have_better_words(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: write {better}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in messages(path.read_text(encoding="utf-8"))
        for old, better in BETTER.items()
        for match in re.finditer(old, text, re.IGNORECASE)
    ]
    assert found == []


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
    is_no = next(old for old in BETTER if "is|are" in old)
    assert re.search(is_no, "it is no port")
    assert not re.search(is_no, "it is no longer there, and there is no other")
