"""Delayed links before a KV tier: what they delay, and that contexts which only the tier has are fetched."""

import time
from math import inf
from pathlib import Path

import pytest

from jaxgen.core.tier_address import DirectoryAddress
from jaxgen.kernels.choice import REFERENCE
from scripts.offload.tiers.__main__ import table
from scripts.offload.tiers.delayed import DelayedStore
from scripts.offload.tiers.measurement import Measurement
from tests.offload.kv_tier.fakes import MemoryStore
from tests.support.engines import LLAMA


def test_a_call_ends_when_its_link_would_have_carried_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)
    store = DelayedStore(MemoryStore(), 0.5, 10.0)
    assert store.put(b"k", [b"twenty bytes of it.."])
    assert not store.put(b"k", [b"twenty bytes of it.."]), "it is there: nothing is sent"
    assert store.get([b"k", b"no"]) == [b"twenty bytes of it..", None]
    assert store.count([b"k", b"no"]) == 1
    store.remove(b"k")
    assert slept == [2.5, 0.5, 2.5, 0.5, 0.5]
    assert store.name == "memory behind a delayed link"


@pytest.mark.full
def test_only_the_tier_has_the_context_that_is_asked_for(tmp_path: Path) -> None:
    """Full: an engine compiles programs that no other test has."""
    measured = Measurement(LLAMA, REFERENCE, DirectoryAddress(tmp_path), tokens=192, budget=16)
    found = [measured.measure(rate, latency, 1) for rate, latency in ((inf, 0.0), (20e6, 0.01))]
    assert [one["computed"]["recompute"] for one in found] == [[192], [192]]
    assert found[0]["computed"]["transfer"] == [64]
    assert [one["read_blocks"]["transfer"] for one in found] == [[2], [2]]
    assert [one["errors"] for one in found] == [0, 0]
    first, second, *rows = table([{"tier": "directory", **one} for one in found]).splitlines()
    assert first.count("|") == second.count("|") == rows[0].count("|")
    assert (len(rows), rows[0].split(" | ")[1], rows[1].split(" | ")[1]) == (2, "none", "20, 10")
