"""Pages name what exists: links, anchors, paths and modules; and every page is in the index."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
FOLDERS = "jaxgen|server|weights|pallas_kernels|scripts|tests|docs|examples"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "scripts" / "README.md",
    ROOT / "weights" / "demo" / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "results").glob("*.md")),
]
REPORTS = sorted((DOCS / "reports").glob("*.md"))
"""Dated pages that are not edited again: what they name may have gone, but their links hold."""
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
LINK = re.compile(r"\]\(([^()\s]+)\)")
PATH = re.compile(rf"(?<![\w/.:-])(?:{FOLDERS})/[\w./*-]*")
MODULE = re.compile(r"(?<![\w/.-])(?:jaxgen|scripts|pallas_kernels)(?:\.[a-z_]\w*)+")
MOST_WORDS = 52_300
"""Words in all pages right in docs/."""
INCOMPLETE = re.compile(r"^[<{]|^\w*[A-Z]")
"""What comes after a path that is only the beginning of a name, or a name in capitals that stands for others."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose_of(page: Path) -> str:
    """Without blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Those of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def paths_in(text: str) -> Iterator[str]:
    """Paths of this repository that a text names, without the punctuation after them."""
    for found in PATH.finditer(text):
        path = found[0].rstrip(".-")
        if not INCOMPLETE.match(text[found.end() :]):
            yield path


def exists(path: str) -> bool:
    """Whether there is such a file or folder; a star stands for any characters of one name."""
    return any(True for _ in ROOT.glob(path.rstrip("/"))) if "*" in path else (ROOT / path).exists()


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of ours, or something in one."""
    package, *parts = name.split(".")
    at = ROOT / package
    for part in parts:
        if at.joinpath(f"{part}.py").is_file():
            return True
        if not (at / part).is_dir():
            init = at / "__init__.py"
            return init.is_file() and re.search(rf"\b{part}\b", init.read_text(encoding="utf-8")) is not None
        at /= part
    return True


@pytest.mark.parametrize("page", [*PAGES, *REPORTS], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", [*PAGES, *PROGRAMS], ids=name_of)
def test_paths_and_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = {path for path in paths_in(text) if not exists(path)}
    missing |= {module for module in MODULE.findall(text) if not is_module(module)}
    assert not missing, "\n".join(sorted(missing))


def test_the_index_has_every_page() -> None:
    linked = set(LINK.findall(prose_of(DOCS / "index.md")))
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - linked == {"index.md"}


def test_reference_is_short() -> None:
    """Dated measurements belong to docs/reports, or to docs/results, whose pages are made from the files there."""
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in DOCS.glob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, words


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


def test_what_is_missing_would_be_found() -> None:
    """The patterns see what pages write."""
    text = "`jaxgen/nowhere.py`, [it](docs/no-page.md#there); scripts/no_*.py, `-m scripts.nothing`, https://x/docs/y"
    assert list(paths_in(text)) == ["jaxgen/nowhere.py", "docs/no-page.md", "scripts/no_*.py"]
    assert not any(exists(path) for path in paths_in(text))
    assert [is_module(name) for name in MODULE.findall(text)] == [False]
    assert is_module("jaxgen.llm.LLM")
    assert is_module("jaxgen.LLM")
    assert exists("docs/results/*.jsonl")
    assert "kernels-on-gpus" in anchors_of(DOCS / "operations.md")
