"""Blocks go to a store and come back by threads; whatever the store does costs blocks, and is never an error."""

import errno

import pytest

from jaxgen.offload.tiers.host_store import HostBlock
from jaxgen.offload.tiers.kv_tier import kv_tier
from jaxgen.offload.tiers.kv_tier.health import RETRY_SECONDS
from jaxgen.offload.tiers.kv_tier.kv_tier import KVTier
from jaxgen.offload.tiers.kv_tier.value import DamagedError, content_of, frame
from tests.offload.tiers.kv_tier.fakes import SIZE, Clock, MemoryStore, answered, block, key, tier_of, written

NAME = bytes(16)


def found(tier: KVTier, *numbers: int) -> int:
    answers: list[int] = []
    assert tier.look_up([key(n) for n in numbers], answers.append)
    answered(tier)
    (answer,) = answers
    return answer


def read(tier: KVTier, *numbers: int) -> list[HostBlock]:
    answers: list[list[HostBlock]] = []
    assert tier.read([key(n) for n in numbers], answers.append)
    answered(tier)
    (answer,) = answers
    return answer


def test_a_block_comes_back_in_another_process() -> None:
    store = MemoryStore()
    written(tier_of(store), 1, 2, 3)
    tier = tier_of(store)
    assert found(tier, 1, 2, 9, 3) == 2
    assert read(tier, 1, 2, 9, 3) == [block(1), block(2)]
    stats = tier.stats
    assert (stats.read_blocks, stats.read_bytes, stats.errors) == (2, sum(map(len, store.values.values())) // 3 * 2, 0)
    assert tier.rate.bytes_per_second > 0


def test_a_namespace_has_blocks_of_its_own_and_no_key_is_readable() -> None:
    store = MemoryStore()
    written(tier_of(store, b"model"), 1)
    assert found(tier_of(store, b"other"), 1) == 0
    assert key(1) not in store.values
    (name,) = store.values
    (other,) = {tier_of(store, b"other")._name(key(1))}
    store.values[other] = store.values.pop(name)  # a file that somebody renamed
    assert read(tier_of(store, b"other"), 1) == []


def test_a_value_made_without_the_key_is_a_miss() -> None:
    store, secret = MemoryStore(), b"of those who share it"
    written(tier_of(store, secret=secret), 1, 2)
    assert read(tier_of(store, secret=secret), 1, 2) == [block(1), block(2)]
    assert [found(tier_of(store, secret=other), 1) for other in (b"", b"another's")] == [0, 0]
    tier = tier_of(store, secret=secret)
    name = tier._name(key(1))
    for forged in (b"".join(frame(name, [bytes(SIZE)])), b"".join(frame(name, [bytes(SIZE)], b"guessed"))):
        store.values[name] = forged
        assert read(tier, 1) == []
        assert name not in store.values
    assert tier.stats.damaged_blocks == 2


def test_every_byte_of_a_sealed_value_counts() -> None:
    value = b"".join(frame(NAME, [b"content"], b"secret"))
    assert bytes(content_of(NAME, value, b"secret")) == b"content"
    for index in range(len(value)):
        changed = bytearray(value)
        changed[index] ^= 1
        with pytest.raises(DamagedError):
            content_of(NAME, bytes(changed), b"secret")
    with pytest.raises(DamagedError, match="version is 2, not 1"):
        content_of(NAME, value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value[:-1],
        lambda value: value + b"x",
        lambda value: value[:10],
        lambda value: b"",
        lambda value: b"X" + value[1:],
        lambda value: value[:8] + b"\2" + value[9:],  # a later version
        lambda value: value[:-1] + bytes([value[-1] ^ 1]),
        lambda value: b"".join(bytes(part) for part in frame(tier_of(MemoryStore())._name(key(1)), [b"short"])),
    ],
)
def test_a_damaged_value_is_a_counted_miss_and_is_removed(damage, caplog) -> None:  # type: ignore[no-untyped-def]
    store = MemoryStore()
    tier = tier_of(store)
    written(tier, 1, 2)
    name = tier._name(key(1))
    store.values[name] = damage(store.values[name])
    assert read(tier, 1, 2) == []
    assert (tier.stats.damaged_blocks, tier.stats.errors, name in store.values) == (1, 0, False)
    assert "damaged" in caplog.text
    written(tier, 1)
    assert read(tier, 1, 2) == [block(1), block(2)]


def test_a_damaged_value_that_cannot_be_removed_stops_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory that is mounted to be read, or in a bucket of which one may not delete."""
    store = MemoryStore()
    tier = tier_of(store)
    written(tier, 1, 2)
    store.values[tier._name(key(2))] += b"x"

    def refuse(_: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(store, "remove", refuse)
    for times in (1, 2):
        assert read(tier, 1, 2) == [block(1)]
        assert (tier.stats.read_blocks, tier.stats.damaged_blocks, tier.stats.errors) == (times, times, 0)
    assert caplog.messages[0].endswith("; it could not be removed (OSError: [Errno 30] Read-only file system)")


def test_every_bit_of_a_value_is_checked() -> None:
    value = b"".join(bytes(part) for part in frame(NAME, [b"con", b"tent"]))
    assert bytes(content_of(NAME, value)) == b"content"
    for bit in range(8 * len(value)):
        wrong = bytearray(value)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedError):
            content_of(NAME, bytes(wrong))


def test_a_failing_store_is_logged_once_and_asked_again_later(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryStore(), Clock()
    tier = tier_of(store, clock=clock)
    written(tier, 1)
    store.write_error = OSError(28, "No space left on device")
    written(tier, 2, 3)
    written(tier, 4)
    assert (tier.stats.errors, tier.stats.written_blocks) == (1, 1), "what was queued behind it is not tried"
    assert tier.stats.dropped_writes == 2
    assert read(tier, 1) == [block(1)], "a full disk can be read"
    clock.now += RETRY_SECONDS
    written(tier, 5)
    assert tier.stats.errors == 2
    store.write_error = None
    clock.now += RETRY_SECONDS
    written(tier, 6)
    assert tier.stats.written_blocks == 2
    assert [r.levelname for r in caplog.records if "No space left" in r.getMessage()] == ["WARNING"]


def test_a_store_that_cannot_be_read_is_not_asked_for_a_time() -> None:
    store, clock = MemoryStore(), Clock()
    tier = tier_of(store, clock=clock)
    written(tier, 1)
    store.error = PermissionError(13, "Permission denied")
    assert found(tier, 1) == 0
    assert not tier.look_up([key(1)], lambda _: None)
    store.error = None
    clock.now += RETRY_SECONDS
    assert found(tier, 1) == 1


def test_a_store_that_hangs_costs_blocks_and_no_wait() -> None:
    store = MemoryStore()
    tier = tier_of(store)
    most = kv_tier.MOST_WRITTEN_BYTES // SIZE
    tier._writer._calls.maxsize = 10
    assert most > 10
    store.gate.clear()
    for n in range(30):
        tier.keep(key(n), block(n))
    assert 19 <= tier.stats.dropped_writes <= 20, "one is being written"
    assert tier.look_up([key(1)], lambda _: None)
    assert not tier.probe(0.01)
    assert not tier.close(0.01)
    store.gate.set()


def test_what_waits_is_written_when_the_tier_is_closed() -> None:
    store = MemoryStore()
    tier = tier_of(store)
    for n in range(20):
        tier.keep(key(n), block(n))
    assert tier.close(60)
    assert len(store.values) == 20


def test_a_probe_leaves_a_rate_and_nothing_else() -> None:
    store = MemoryStore()
    tier = tier_of(store)
    assert tier.probe(60)
    assert tier.rate.bytes_per_second > 0
    assert store.values == {}


def test_a_block_computed_again_is_compared() -> None:
    store = MemoryStore()
    tier = tier_of(store)
    written(tier, 1, 2)
    for n in (1, 2, 3):
        tier.compare(key(n))
    written(tier, 1)
    tier.keep(key(2), block(7))  # not what the store has
    written(tier, 3, 1)
    assert (tier.stats.compared_blocks, tier.stats.differing_blocks) == (2, 1)
    assert read(tier, 2) == [block(7)]


def test_the_time_of_a_call_and_that_of_its_bytes_are_told_apart() -> None:
    store, clock = MemoryStore(), Clock()
    store.clock, store.latency, store.bytes_per_second = clock, 0.2, 1000.0
    tier = tier_of(store, clock=clock)
    assert tier.seconds(1e6, 3) == 0.0, "nothing is known"
    assert tier.probe(60)
    assert tier.seconds(5000, 3) == pytest.approx(3 * 0.2 + 5.0)
    written(tier, 1, 2)
    assert read(tier, 1, 2) == [block(1), block(2)]
    assert tier.seconds(5000, 3) == pytest.approx(3 * 0.2 + 5.0)
    store.latency = 0.0  # a read that took less than calls did so far
    assert read(tier, 1) == [block(1)]
    assert 0 < tier.rate.bytes_per_second < 10**6
