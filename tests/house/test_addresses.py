"""The table of docs/architecture.md names every file that a change of its kind touches: an example leaves the trail."""

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TRAILS = {
    "a sampling parameter": ["min_p"],
    "a gauge or counter of the engine": ["blocks_cached", "leaks"],
    "a dtype of the KV cache, of 8 bits": ["kFp8", r"visit\(Fp8", "fp8_per_token_head"],
}
"""By row: words that stand only where an example of the kind is named."""
PACKAGES = ("jaxgen", "server", "weights", "pallas_kernels")
KINDS = {".py", ".js", ".h", ".cc"}


def files_of_row(name: str) -> set[str]:
    """The product's files that a row of the table names."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", page, re.MULTILINE)
    return {path for path in re.findall(r"`([\w/.-]+)`", row) if path.startswith(PACKAGES)}


def trail(words: list[str]) -> set[str]:
    """The product's files with one of these words."""
    word = re.compile(rf"\b({'|'.join(words)})\b")
    paths: list[Path] = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in KINDS]
    return {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if path.is_file() and word.search(path.read_text(encoding="utf-8", errors="replace"))
    }


@pytest.mark.parametrize("row", TRAILS)
def test_a_row_names_every_file_of_its_example(row: str) -> None:
    assert sorted(trail(TRAILS[row]) - files_of_row(row)) == []
