"""Each part of a sequence's state is written by one package, and its block table is read by that one alone."""

import ast
from collections.abc import Iterator
from dataclasses import fields

import pytest

from jaxgen.core.sequence import Sequence, SequenceBlocks, WindowBlocks
from jaxgen.core.standing import Standing
from tests.support.paths import ROOT

PROGRESS = ("tokens", "num_pending", "num_forced", "num_computed", "row", "status")
OWNERS = {
    **{field.name: None for field in fields(Sequence)},  # complete at birth
    **dict.fromkeys(
        [*PROGRESS, *[field.name for part in (SequenceBlocks, WindowBlocks) for field in fields(part)]], "cache"
    ),
    **dict.fromkeys(["finish_reason", *[field.name for field in fields(Standing)]], "scheduling"),
}
"""By attribute of a sequence, of its blocks or of its standing: the package that writes it."""
OTHERS = {"room.tokens", "self._meter.restore", "fetch.keys"}
"""Attributes of other objects that have the same names."""


def faults(package: str, tree: ast.Module) -> Iterator[str]:
    """Yield what a module of a package writes, or reads of the block table, although another package owns it."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Attribute() as target, ctx=ast.Store() | ast.Del()):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Attribute() as target, attr="append" | "clear" | "extend")):
                pass
            case (ast.Attribute(attr="table") | ast.Attribute(ctx=ast.Store() | ast.Del())) as target:
                pass
            case _:
                continue
        text = ast.unparse(target)
        of_itself = isinstance(target.value, ast.Name) and target.value.id == "self"
        if OWNERS.get(target.attr, package) != package and not of_itself and text not in OTHERS:
            yield f"line {node.lineno}: {text} is of {OWNERS[target.attr] or 'nobody'}"


def test_state_is_written_by_its_owner() -> None:
    found = {
        f"{path.relative_to(ROOT)}, {fault}"
        for path in sorted((ROOT / "jaxgen").rglob("*.py"))
        for fault in faults(path.parts[len(ROOT.parts) + 1], ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        "sequence.blocks.num_shared = 1",
        "sequence.blocks.windows[0].num_freed += 1",
        "blocks.restore, x = None, 1",
        "sequence.num_computed += 1",
        "del chunk.sequence.blocks.table[2:]",
        "s.tokens.append(7)",
        "print(len(sequence.blocks.table))",
        "standing.level = 0",
        "sequence.request = None",
    ],
)
def test_a_write_or_a_read_elsewhere_is_found(line: str) -> None:
    assert any(faults("engine", ast.parse(line)))


def test_the_owner_may_write() -> None:
    lines = {"cache": "blocks.table += [1]\nsequence.row = 2", "scheduling": "sequence.standing.level = 0"}
    assert [list(faults(package, ast.parse(line))) for package, line in lines.items()] == [[], []]
