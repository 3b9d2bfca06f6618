"""What tests of scripts.peers share: a machine, lines of records, and peers that compute nothing."""

import sys
from dataclasses import dataclass, field
from typing import Any

from scripts.peers.loads.forms import expression
from scripts.peers.peer import Launch, Site, token_ids
from scripts.peers.shapes import FORMATS, Format

LIMITS = {
    "memory_bytes_per_s": 10e9,
    "float32_flops_per_s": 100e9,
    "bfloat16_flops_per_s": 200e9,
}
MACHINE = {"cpu": "Some CPU, 2 cores", "system": "Linux x86_64", "threads": 2, "shape": "88m", "limits": LIMITS}


def server(peer: str, index: int, found: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    about = {"round": index, "peer": peer, "format": "float32", "started": "2026-01-02T03:04:05+00:00"}
    how = {"warmup": 1.0, "seconds": 2.0, "versions": {peer: "1.2"}, "note": "as it comes", "start_seconds": 3.0}
    return {**about, **how, "peak_rss": 2**30, "answers": [[1, 2], [3, 4]], "cells": found, **fields}


def lines_with(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


@dataclass
class FakePeer:
    """``extra``: tokens that its answers have too many; ``command`` in place of the server."""

    name: str
    extra: int = 0
    command: list[str] = field(default_factory=list)
    started: int = 0
    usage: str = "continuous"
    note: str = "a fake"

    formats: frozenset[str] = frozenset(FORMATS)

    def prepare(self, site: Site, wanted: Format) -> None:
        pass

    def versions(self, site: Site) -> dict[str, str]:
        return {self.name: "1"}

    def launch(self, site: Site, wanted: Format, port: int) -> Launch:
        self.started += 1
        fake = [sys.executable, "-m", "tests.support.fake_peer", str(port), str(self.extra)]
        return Launch(self.command or fake)

    def fitting(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {"regex": expression(schema)}

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return token_ids(answer)[:8]
