"""Results as lines of JSON, written as they come. Each line has ``kind``: machine, server, cell or failure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]
SERVER = ("round", "peer", "format")


@dataclass
class Records:
    """The lines of a file, which may not be there yet."""

    path: Path
    lines: list[Line] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Records":
        return cls(path, [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [])

    def add(self, kind: str, **values: Any) -> None:
        line = {"kind": kind, **rounded(values)}
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def of_kind(self, kind: str, **values: Any) -> list[Line]:
        """Lines of that kind that have these values."""
        return [line for line in self.lines if line["kind"] == kind and values.items() <= line.items()]

    def failures(self, **values: Any) -> list[Line]:
        """The newest of each server in a round, where it was not measured after all."""
        newest = {tuple(line[name] for name in SERVER): line for line in self.of_kind("failure", **values)}
        return [line for line in newest.values() if not self.of_kind("server", **{name: line[name] for name in SERVER})]


def by_round(servers: Iterable[Line], peer: str, load: dict[str, Any]) -> dict[int, Line]:
    """Return a peer's figures of the load with these values, and the window's seconds, by round.

    Where a round has several, they are the newest.
    """
    return {
        server["round"]: {"seconds": server["seconds"], **cell}
        for server in servers
        if server["peer"] == peer
        for cell in server["cells"]
        if load.items() <= cell.items()
    }


def rounded(value: Any) -> Any:
    """With floats of five significant digits: what is measured has fewer."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
