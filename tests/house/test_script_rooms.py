"""Rooms of scripts/ import only rooms below them, so that what two tools share lies under both."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

FLOORS = (
    {"gpu"},
    {"gpu.page", "gpu.peer"},
    {"gpu.rows", "measure", "make"},
    {"gpu.roofline", "peers", "offload", "simulation"},
    {"gpu.result", "loads", "page"},
)
"""From the top. Rooms of one floor do not import each other. Other folders belong to the room around them."""
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(parts: tuple[str, ...]) -> str | None:
    """Return the room of a module below scripts/; None if it has no floor, as what users call."""
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in FLOOR_OF), None)


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the modules of scripts that a file imports, as names below scripts."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (tuple(name.split(".")[1:]) for name in names if name.startswith("scripts."))


def upward() -> Iterator[str]:
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        mine = room_of(path.relative_to(ROOT / "scripts").with_suffix("").parts)
        for parts in imports(path):
            other = room_of(parts)
            if mine and other and mine != other and FLOOR_OF[other] <= FLOOR_OF[mine]:
                yield f"{path.relative_to(ROOT)} of {mine} imports {'.'.join(parts)} of {other}"


def test_no_room_imports_one_above_or_beside_it() -> None:
    assert list(upward()) == []


def test_each_floor_has_its_rooms() -> None:
    assert all((ROOT / "scripts" / Path(*room.split("."))).is_dir() for room in FLOOR_OF)
    assert room_of(("gpu", "rows", "work", "StepLoad")) == "gpu.rows"
    assert room_of(("gpu", "cli")) == "gpu"
