"""Engines in turn on one directory: what one computed the next finds, with the same bits, or computes again."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgen.core.config import EngineConfig, OffloadConfig
from jaxgen.core.identity import Identity
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.stats import KVTierStats
from jaxgen.core.tier_address import DirectoryAddress
from jaxgen.engine.engine import Engine
from jaxgen.offload.build import Offload
from jaxgen.offload.tiers.kv_tier import prefetcher
from jaxgen.offload.tiers.kv_tier.directory import FOLDER, DirectoryStore
from jaxgen.offload.tiers.kv_tier.value import content_of, frame
from tests.support.engines import LLAMA, engine_config, make_engine, request, run
from tests.support.golden_runs import longer

BLOCK = 8
PROMPT = np.random.default_rng(5).integers(3, LLAMA.vocab_size, size=201).tolist()
BLOCKS = (len(PROMPT) - 1) // BLOCK


def config(directory: Path, **changes: Any) -> EngineConfig:
    offload = OffloadConfig(100, "transfer", tier=DirectoryAddress(directory), tier_bytes=10**9)
    return replace(engine_config(block_size=BLOCK), offload=replace(offload, **changes))


@pytest.fixture
def latents(request: pytest.FixtureRequest) -> str:
    """A golden whose cache has latents; none: the model of most tests."""
    return getattr(request, "param", "")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, latents: str) -> Callable[..., Engine]:
    """Start an engine that waits for its tier as long as that takes: the processor is shared with other work."""
    monkeypatch.setattr(prefetcher, "MAX_WAIT", 600.0)
    model = longer(latents) if latents else LLAMA

    def started(weights: str = "some", **changes: Any) -> Engine:
        return make_engine(model, config(tmp_path, **changes), identity=Identity({"weights": weights}))

    return started


def asked(**changes: Any) -> Request:
    return replace(request("r", PROMPT, max_tokens=4, seed=7, ignore_eos=True, logprobs=5), **changes)


def answer(engine: Engine, one: Request | None = None) -> list[TokenEvent]:
    """Return the answer, whose log-probabilities show every bit."""
    return [replace(event, cached_tokens=None) for event in run(engine, [one or asked()])["r"]]


def computed(engine: Engine) -> int:
    return engine.stats().prompt_tokens


def stats(engine: Engine) -> KVTierStats:
    found = engine.stats().kv_tier
    assert found is not None
    return found


def values(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def expected(start: Callable[..., Engine]) -> list[TokenEvent]:
    """The answer of an engine that has ended since."""
    engine = start()
    found = answer(engine)
    assert computed(engine) == len(PROMPT)
    engine.close()
    return found


@pytest.mark.shipped
@pytest.mark.parametrize("latents", ["", pytest.param("deepseek_v2", marks=pytest.mark.full)], indirect=True)
def test_a_restarted_engine_does_not_compute_a_known_prefix(
    start: Callable[..., Engine], expected: list[TokenEvent]
) -> None:
    engine = start()
    (events,) = run(engine, [asked()]).values()
    assert events[0].cached_tokens == BLOCKS * BLOCK
    assert [replace(event, cached_tokens=None) for event in events] == expected
    assert computed(engine) == len(PROMPT) - BLOCKS * BLOCK == 1
    found = stats(engine)
    assert (found.hit_blocks, found.read_blocks, found.missed_blocks) == (BLOCKS, BLOCKS, 0)
    assert found.errors == found.damaged_blocks == found.timeouts == 0
    assert engine.stats().compilations_after_ready == 0
    engine.close()


def test_two_engines_at_once_share_a_directory(start: Callable[..., Engine]) -> None:
    one, other = start(), start()
    expected = answer(one)
    one.close()
    assert answer(other) == expected
    assert computed(other) == 1
    other.close()


@pytest.mark.parametrize("others", [4, 1])
def test_a_fetch_begins_while_its_request_waits_and_others_go_on(
    start: Callable[..., Engine], expected: list[TokenEvent], monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """It is queued behind others that have all rows, or could begin but for the fetch."""
    engine = start()
    get, reading, may_read = DirectoryStore.get, threading.Event(), threading.Event()

    def slow(store: DirectoryStore, keys: list[bytes], *bound: int) -> list[bytes | None]:
        reading.set()
        assert may_read.wait(60)
        return get(store, keys, *bound)

    monkeypatch.setattr(DirectoryStore, "get", slow)
    for n in range(others):
        engine.add(request(f"other {n}", [5 + n, 6, 7], max_tokens=50, temperature=0.0, ignore_eos=True))
    engine.step()
    engine.add(asked())
    assert isinstance(engine.offload, Offload)
    assert engine.offload.tier.fetcher is not None
    engine.offload.tier.fetcher.tier.wait(60)  # the blocks are looked up
    events = engine.step()
    assert reading.wait(60)
    events += [event for _ in range(20) for event in engine.step()]
    assert {event.request_id for event in events} == {f"other {n}" for n in range(others)}
    assert len(events) >= 20 * others
    assert engine.stats().num_waiting == 1
    may_read.set()
    found = run(engine, [])
    assert found["r"][0].cached_tokens == BLOCKS * BLOCK
    assert [replace(event, cached_tokens=None) for event in found["r"]] == expected
    assert stats(engine).timeouts == 0
    engine.close()


@pytest.mark.parametrize("changes", [{"weights": "others"}, {"policy": "recompute"}])
def test_what_may_not_be_read_is_computed(
    start: Callable[..., Engine], expected: list[TokenEvent], changes: dict[str, Any]
) -> None:
    engine = start(**changes)
    assert answer(engine) == expected
    assert computed(engine) == len(PROMPT)


def test_another_salt_finds_nothing(start: Callable[..., Engine], expected: list[TokenEvent]) -> None:
    engine = start()
    assert answer(engine, asked(cache_salt="other")) == expected
    assert (computed(engine), stats(engine).hit_blocks) == (len(PROMPT), 0)


@pytest.mark.parametrize("damage", ["cut", "changed", "removed"])
def test_damaged_files_are_computed_again(
    start: Callable[..., Engine], expected: list[TokenEvent], tmp_path: Path, damage: str
) -> None:
    engine = start()
    for path in values(tmp_path)[::3]:
        content = path.read_bytes()
        path.write_bytes(content[:-5] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 4]))
        if damage == "removed":
            path.unlink()
    assert answer(engine) == expected
    assert 1 < computed(engine) <= len(PROMPT)
    assert (stats(engine).damaged_blocks > 0, stats(engine).errors) == (damage != "removed", 0)
    engine.close()


@pytest.mark.parametrize("differs", [False, True])
def test_a_block_of_the_tier_is_computed_again_and_compared(
    start: Callable[..., Engine],
    expected: list[TokenEvent],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    differs: bool,
) -> None:
    """The last of those that a fetch finds; what has another content is counted, though its checksum is right."""
    monkeypatch.setattr(prefetcher, "COMPARE_ONE_IN", 1)
    for path in values(tmp_path) if differs else ():
        key = bytes.fromhex(path.parent.name + path.name)
        content = bytearray(content_of(key, path.read_bytes()))
        content[-1] ^= 1
        path.write_bytes(b"".join(map(bytes, frame(key, [bytes(content)]))))
    engine = start()
    events = answer(engine)
    assert computed(engine) == len(PROMPT) - (BLOCKS - 1) * BLOCK
    engine.close()
    found = stats(engine)
    assert (found.compared_blocks, found.differing_blocks, found.damaged_blocks) == (1, int(differs), 0)
    if not differs:
        assert events == expected


def test_a_directory_removed_while_it_is_used_costs_what_was_in_it(
    start: Callable[..., Engine], expected: list[TokenEvent], tmp_path: Path
) -> None:
    engine = start()
    shutil.rmtree(tmp_path / FOLDER)
    assert answer(engine) == expected
    engine.close()
    assert (computed(engine), stats(engine).errors) == (len(PROMPT), 0)
    assert len(values(tmp_path)) >= BLOCKS, "written again"


def test_a_full_disk_is_no_error_of_a_request(
    start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DirectoryStore, "_write", full)
    engine = start()
    for salt in "abc":
        assert len(answer(engine, asked(cache_salt=salt))) == 4
    engine.close()
    found = stats(engine)
    assert (found.written_blocks, found.read_blocks, found.errors) == (0, 0, 1), "not tried again at once"
    assert found.dropped_writes >= 3 * BLOCKS
    assert len([record for record in caplog.records if "No space left" in record.getMessage()]) == 1
