"""A store on a server of the redis protocol (redis, valkey), of bounded size. Host only, no jax.

The key of a value is ``jaxgen:kv1:`` and 32 hexadecimal digits. A value lives for KEEP_SECONDS after it was used last,
by the server's clock. What is left of that says when it was used: the values used longest ago are removed first. What
is asked of several keys is one pipeline, so it costs one round trip.
"""

import threading
from collections.abc import Buffer, Iterator, Sequence
from contextlib import contextmanager
from itertools import batched
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NotConnectedError
from redis.retry import Retry

from jaxgen.core.tier_address import RedisAddress
from jaxgen.offload.tiers.kv_tier.byte_quota import ByteQuota, StoredValue
from jaxgen.offload.tiers.kv_tier.store import MOST_BYTES

KEEP_SECONDS = 7 * 24 * 3600
"""How long a value is kept that nobody uses."""
CONNECT_SECONDS = 3.0
SILENT_SECONDS = 10.0
"""Most seconds without a byte of an answer."""
CALL_SECONDS = 30.0
"""Most seconds of a call."""
PREFIX = "jaxgen:kv1:"
LISTED_TOGETHER = 1000


class RedisStore:
    """A ``ByteStore`` of at most ``most_bytes``. It connects when it is first asked for something."""

    def __init__(self, address: RedisAddress, most_bytes: int) -> None:
        tls = {"ssl_ca_certs": address.ca, "ssl_certfile": address.cert, "ssl_keyfile": address.key}
        self._name = str(address)
        self._client: Any = Redis(
            address.host,
            address.port,
            address.database,
            username=address.user,
            password=address.password,
            socket_timeout=SILENT_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_read_size=2**20,  # values are long
            retry=Retry(NoBackoff(), 1, (NotConnectedError,)),  # the server may have closed a connection long unused
            ssl=address.tls,
            **(tls if address.tls else {}),
        )
        self._quota = ByteQuota(most_bytes, self._values, self._remove_values)

    @property
    def name(self) -> str:
        return self._name

    def count(self, keys: Sequence[bytes]) -> int:
        """See ByteStore."""
        return next((index for index, there in enumerate(self._exist(keys)) if not there), len(keys))

    def last(self, keys: Sequence[bytes]) -> int:
        """See ByteStore."""
        return max([number for number, there in enumerate(self._exist(keys), 1) if there], default=0)

    def get(self, keys: Sequence[bytes], longest: int = MOST_BYTES) -> list[bytes | None]:
        """See ByteStore."""
        with self._client.pipeline(transaction=False) as calls, self._in_time():
            for index, key in enumerate(keys):  # a block is useful only with those before it: it may go sooner
                calls.pexpire(_key(key), KEEP_SECONDS * 1000 - index)
                calls.getrange(_key(key), 0, longest)  # both ends are read
            replies = calls.execute()
        return [value if there else None for there, value in batched(replies, 2)]

    def put(self, key: bytes, parts: Sequence[Buffer]) -> bool:
        """See ByteStore."""
        with self._in_time():
            if self._client.expire(_key(key), KEEP_SECONDS):
                return False
        value = b"".join(parts)
        self._quota.make(len(value))
        with self._in_time():
            if not self._client.set(_key(key), value, ex=KEEP_SECONDS, nx=True):
                return False
        self._quota.taken(len(value))
        return True

    def remove(self, key: bytes) -> None:
        """See ByteStore."""
        self._client.unlink(_key(key))

    def _exist(self, keys: Sequence[bytes]) -> list[int]:
        with self._client.pipeline(transaction=False) as calls, self._in_time():
            for key in keys:
                calls.exists(_key(key))
            replies: list[int] = calls.execute()
        return replies

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Close the connections if what happens in this context takes longer than CALL_SECONDS, and raise TimeoutError.

        A server that sends a byte now and then is never silent.
        """
        late = False

        def end() -> None:
            nonlocal late
            late = True
            self._client.connection_pool.disconnect()

        timer = threading.Timer(CALL_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            if late:
                raise TimeoutError(f"no whole answer within {CALL_SECONDS:g} s") from error
            raise
        finally:
            timer.cancel()

    def _values(self) -> Iterator[StoredValue]:
        for keys in batched(self._client.scan_iter(f"{PREFIX}*", count=LISTED_TOGETHER), LISTED_TOGETHER):
            with self._client.pipeline(transaction=False) as calls:
                for key in keys:
                    calls.pttl(key)
                    calls.strlen(key)
                replies = calls.execute()
            for key, left, num_bytes in zip(keys, replies[::2], replies[1::2], strict=True):
                yield StoredValue(left, num_bytes, key.decode())

    def _remove_values(self, values: Sequence[StoredValue]) -> None:
        for batch in batched(values, LISTED_TOGETHER):
            self._client.unlink(*(value.name for value in batch))


def _key(key: bytes) -> str:
    return PREFIX + key.hex()
