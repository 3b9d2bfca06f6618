"""What every store of a KV tier does: a directory, a server of the redis protocol, and obstore's store in memory."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from fakeredis import TcpFakeServer
from obstore.store import MemoryStore

from jaxgen.core.tier_address import RedisAddress
from jaxgen.offload.tiers.kv_tier import redis_store
from jaxgen.offload.tiers.kv_tier.directory import DirectoryStore
from jaxgen.offload.tiers.kv_tier.redis_store import KEEP_SECONDS, RedisStore
from jaxgen.offload.tiers.kv_tier.s3_store import AT_ONCE, BucketStore
from jaxgen.offload.tiers.kv_tier.store import ByteStore

Open = Callable[[int], ByteStore]
"""Opens the store of a test, once more each time, with these most bytes."""
BIG = 10**9


def key(n: int) -> bytes:
    return n.to_bytes(16)


@pytest.fixture(scope="module")
def redis_port() -> Iterator[int]:
    """Of a server that speaks the protocol over sockets, in a thread; scripts/ci/check_clients.sh has a real one."""
    server = TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture
def redis(redis_port: int) -> Iterator[Callable[[int], RedisStore]]:
    opened: list[RedisStore] = []

    def found(most_bytes: int) -> RedisStore:
        opened.append(RedisStore(RedisAddress("127.0.0.1", redis_port), most_bytes))
        return opened[-1]

    found(BIG)._client.flushdb()
    yield found
    for store in opened:
        store._client.close()


@pytest.fixture(params=["directory", "redis", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "redis":
        found: Open = request.getfixturevalue("redis")
        return found
    if request.param == "directory":
        return lambda most: DirectoryStore(tmp_path / "deep" / "tier", most)
    bucket = MemoryStore()
    return lambda most: BucketStore(bucket, "s3://bucket", most)


def bytes_in(store: ByteStore) -> int:
    assert isinstance(store, DirectoryStore | RedisStore | BucketStore)
    return sum(value.num_bytes for value in store._quota._values())


def test_what_was_put_is_found_by_another_store_of_the_same_place(opened: Open) -> None:
    store, other = opened(BIG), opened(BIG)
    assert (store.count([key(1)]), store.get([key(1)])) == (0, [None])
    assert store.put(key(1), [b"he", memoryview(b"llo")])
    assert store.put(key(2), [b"world"])
    assert not other.put(key(1), [b"other"]), "it is there"
    assert other.get([key(1), key(3), key(2)]) == [b"hello", None, b"world"]
    assert (other.count([key(1), key(2), key(3), key(2)]), other.count([key(3), key(1)])) == (2, 0)
    other.remove(key(1))
    other.remove(key(1))
    assert store.get([key(1)]) == [None]
    assert (store.count([]), store.get([])) == (0, [])


def test_a_value_that_is_too_long_is_not_read_whole(opened: Open) -> None:
    store = opened(BIG)
    for n, size in enumerate((100, 101, 100_000)):
        store.put(key(n), [bytes(size)])
    right, *wrong = store.get([key(n) for n in range(3)], 100)
    assert right == bytes(100)
    assert all(value is not None and len(value) in (0, 101) for value in wrong)


def test_a_server_that_sends_a_byte_now_and_then_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "CALL_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(60)
        store, ended = RedisStore(RedisAddress("127.0.0.1", server.getsockname()[1]), BIG), threading.Event()
        dripped = pool.submit(drip, server, ended)
        try:
            with pytest.raises(TimeoutError, match=r"no whole answer within 0\.05 s"):
                store.count([key(1)])
        finally:
            ended.set()
        dripped.result()


def drip(server: socket.socket, ended: threading.Event) -> None:
    """Answer with the digits of a length, one after the other."""
    connection, _ = server.accept()
    with connection, suppress(OSError):
        connection.sendall(b"*")
        while not ended.wait(0.005):
            connection.sendall(b"1")


def test_many_keys_are_counted_up_to_the_first_that_is_missing(opened: Open) -> None:
    store, missing = opened(BIG), AT_ONCE + 3
    for n in range(2 * AT_ONCE):
        if n != missing:
            store.put(key(n), [b"x"])
    keys = [key(n) for n in range(2 * AT_ONCE)]
    assert store.count(keys) == missing
    assert [store.last(keys), store.last([*keys, *map(key, range(200, 240))]), store.last(keys[: missing + 1])] == [
        *(2 * AT_ONCE, 2 * AT_ONCE, missing)
    ]
    assert (store.last([key(200)]), store.last([])) == (0, 0)


def test_what_another_process_wrote_counts_too(opened: Open) -> None:
    store, other = opened(1600), opened(1600)
    for n in range(40):
        (store if n % 2 else other).put(key(n), [bytes(50)])
        assert bytes_in(store) <= 1600 + 100, "a sixteenth over, for the other"


def test_the_oldest_values_make_room(opened: Open) -> None:
    store = opened(1000)
    for n in range(10):
        store.put(key(n), [bytes(100)])
        time.sleep(0.002)  # what a store tells of time is milliseconds
    store.put(key(10), [bytes(100)])
    assert store.get([key(n) for n in (0, 1, 2, 9, 10)]) == [None, None, bytes(100), bytes(100), bytes(100)]


def test_two_writers_and_a_reader_see_whole_values_only(opened: Open) -> None:
    """Both write the same keys, and remove each other's oldest values."""
    value = bytes(range(256)) * 40
    errors: list[object] = []

    def write() -> None:
        store = opened(10 * len(value))
        try:
            for n in range(30):
                store.put(key(n % 15), [value[:5000], value[5000:]])
                errors.extend(1 for found in store.get([key(m) for m in range(15)]) if found not in (None, value))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_redis_removes_what_was_used_longest_ago_and_forgets_what_nobody_uses(
    redis: Callable[[int], RedisStore],
) -> None:
    store = redis(1000)
    for n in range(9):
        store.put(key(n), [bytes(100)])
        store._client.pexpire(f"jaxgen:kv1:{key(n).hex()}", 10**6 + n)
    store._client.set("of another program", bytes(5000))
    store.get([key(0)])  # used now
    store.put(key(1), [bytes(100)])  # used now, since it is there
    for n in (9, 10):
        store.put(key(n), [bytes(100)])
    assert store.get([key(n) for n in (0, 1, 2, 3, 4)]) == [bytes(100), bytes(100), None, None, bytes(100)]
    left = [value.used for value in store._quota._values()]
    assert max(left) <= KEEP_SECONDS * 1000
    assert min(left) > 0
    assert store._client.exists("of another program")


def test_of_blocks_read_together_the_last_makes_room_first(redis: Callable[[int], RedisStore]) -> None:
    store = redis(BIG)
    for n in range(200):
        store.put(key(n), [b"x"])
    store.get([key(n) for n in range(200)])
    used = {value.name: value.used for value in store._quota._values()}
    first, last = (used[f"jaxgen:kv1:{key(n).hex()}"] for n in (0, 199))
    assert first > last


def test_a_call_is_one_round_trip_whatever_the_number_of_keys(
    redis: Callable[[int], RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis.connection import Connection

    store = redis(BIG)
    sent: list[object] = []
    store.put(key(1), [b"x"])
    send = Connection.send_packed_command

    def counted(self: object, *args: object, **kwargs: object) -> object:
        sent.append(args)
        return send(self, *args, **kwargs)

    monkeypatch.setattr(Connection, "send_packed_command", counted)
    assert store.get([key(n) for n in range(100)])[1] == b"x"
    assert store.count([key(n) for n in range(100)]) == 0
    assert len(sent) == 2


def test_a_dead_server_is_an_error_within_its_time_limit_without_a_password() -> None:
    store = RedisStore(RedisAddress("127.0.0.1", 1, user="me", password="secret"), BIG)
    for call in (lambda: store.get([key(1)]), lambda: store.put(key(1), [b"x"]), lambda: store.count([key(1)])):
        with pytest.raises(Exception, match="refused") as found:
            call()
        assert "secret" not in f"{found.value!r} {found.value}"
    assert store.name == "redis://127.0.0.1:1/0"
