"""docs/errors.md has every code that an answer of the server can have."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxgen.server.schema.base import UNKNOWN, UNSUPPORTED

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def codes() -> Iterator[str]:
    """Yield the texts that calls in the server's sources give as ``code``."""
    yield from (UNKNOWN, UNSUPPORTED)
    for path in sorted((ROOT / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if isinstance(node.func, ast.Name) and node.func.id == "bad_request":
                given += node.args[2:3]
            yield from (
                value.value for value in given if isinstance(value, ast.Constant) and isinstance(value.value, str)
            )


def test_codes_are_found() -> None:
    assert {"queue_full", "context_length_exceeded", "engine_dead"} <= set(codes())


@pytest.mark.parametrize("code", sorted(set(codes())))
def test_the_page_has_the_code(code: str) -> None:
    assert f"`{code}`" in PAGE
