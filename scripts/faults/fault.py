"""A fault made on purpose: a small change of the product that tests must notice."""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Room = Literal[
    "scheduler",
    "cache",
    "offload",
    "sizing",
    "sampling",
    "models",
    "kernels",
    "weights",
    "text",
    "server",
    "batches",
]
ROOMS: tuple[Room, ...] = get_args(Room)


class FaultError(Exception):
    """A fault that cannot be made, as it stands in the list."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``old``, which is in ``file`` once, becomes ``new``. ``name`` says what is wrong then.

    ``tests``: files, or single tests where a file takes long, one of which must fail.
    """

    name: str
    room: Room
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied_to(self, text: str) -> str:
        """The file's text with the fault. Raises FaultError."""
        if self.old == self.new:
            raise FaultError(f"{self.name}: nothing changes in {self.file}")
        if (count := text.count(self.old)) != 1:
            raise FaultError(f"{self.name}: what it changes is in {self.file} {count} times, not once: {self.old!r}")
        changed = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise FaultError(f"{self.name}: {self.file} is no program with it: {error}") from error
        return changed

    def apply(self, root: Path) -> None:
        """In the tree at ``root``. Raises FaultError."""
        path = root / self.file
        if not path.is_file():
            raise FaultError(f"{self.name}: there is no {self.file}")
        path.write_text(self.applied_to(path.read_text(encoding="utf-8")), encoding="utf-8")
