"""A store in a bucket of S3, or of a server that speaks its protocol, of bounded size. Host only, no jax.

A value is an object PREFIX/jaxgen-kv-v1/ab/cdef..., which appears whole. Objects with names of another form are not
counted and never removed. S3 does not tell when an object was read: the values
written longest ago, by the server's clock, are removed first. What is asked of several keys is asked at the same time.
"""

import asyncio
import re
from collections.abc import Awaitable, Buffer, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from jaxgen.core.tier_address import S3Address
from jaxgen.offload.tiers.kv_tier.byte_quota import ByteQuota, StoredValue
from jaxgen.offload.tiers.kv_tier.store import MOST_BYTES

CONNECT_SECONDS, REQUEST_SECONDS = 3, 10
"""Most seconds that a connection, and a request, may take. A request is tried twice."""
CALL_SECONDS = 30.0
"""Most seconds for all requests of a call."""
FOLDER = "jaxgen-kv-v1"
_NAME = re.compile(rf"{FOLDER}/[0-9a-f]{{2}}/[0-9a-f]{{30}}")
AT_ONCE = 32
"""Requests under way at the same time."""


class BucketStore:
    """A ``ByteStore`` of at most ``most_bytes`` over one of obstore's stores."""

    def __init__(self, store: Any, name: str, most_bytes: int) -> None:
        self._store, self._name = store, name
        self._quota = ByteQuota(most_bytes, self._values, self._remove_values)

    @property
    def name(self) -> str:
        return self._name

    def count(self, keys: Sequence[bytes]) -> int:
        """See ByteStore."""
        for start in range(0, len(keys), AT_ONCE):
            heads = self._heads(keys[start : start + AT_ONCE])
            missing = next((index for index, there in enumerate(heads) if there is None), None)
            if missing is not None:
                return start + missing
        return len(keys)

    def last(self, keys: Sequence[bytes]) -> int:
        """See ByteStore."""
        for end in range(len(keys), 0, -AT_ONCE):
            start = max(0, end - AT_ONCE)
            heads = self._heads(keys[start:end])
            found = max([number for number, there in enumerate(heads, 1) if there is not None], default=0)
            if found:
                return start + found
        return 0

    def get(self, keys: Sequence[bytes], longest: int = MOST_BYTES) -> list[bytes | None]:
        """See ByteStore."""
        return _all(partial(self._read, longest), keys)

    def put(self, key: bytes, parts: Sequence[Buffer]) -> bool:
        """See ByteStore."""
        if self.count([key]):
            return False
        value = b"".join(parts)
        self._quota.make(len(value))
        obstore.put(self._store, _path(key), value, use_multipart=False)
        self._quota.taken(len(value))
        return True

    def remove(self, key: bytes) -> None:
        """See ByteStore."""
        self._remove([_path(key)])

    def _heads(self, keys: Sequence[bytes]) -> list[Any]:
        return _all(lambda path: obstore.head_async(self._store, path), keys)

    async def _read(self, longest: int, path: str) -> bytes:
        response = await obstore.get_async(self._store, path)
        if response.meta["size"] > longest:
            return b""
        value: bytes = (await response.bytes_async()).to_bytes()
        return value

    def _values(self) -> Iterator[StoredValue]:
        for batch in obstore.list(self._store, FOLDER):
            for entry in batch:
                if _NAME.fullmatch(entry["path"]):
                    yield StoredValue(entry["last_modified"].timestamp(), entry["size"], entry["path"])

    def _remove_values(self, values: Sequence[StoredValue]) -> None:
        self._remove([value.name for value in values])

    def _remove(self, paths: list[str]) -> None:
        if paths:
            obstore.delete(self._store, paths)


def open_bucket(address: S3Address, most_bytes: int) -> BucketStore:
    """Return the store of a bucket; obstore reads credentials as AWS_ACCESS_KEY_ID and its like say."""
    settings = {"endpoint": address.endpoint, "region": address.region}
    options: dict[str, Any] = {
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{REQUEST_SECONDS}s",
        "allow_http": True,  # only to an endpoint that begins so
    }
    if address.ca is not None:
        options["root_certificate"] = Path(address.ca).read_bytes()
    store = S3Store(
        address.bucket,
        prefix=address.prefix or None,
        config={name: value for name, value in settings.items() if value is not None},
        client_options=options,
        retry_config={"max_retries": 1},
    )
    return BucketStore(store, str(address), most_bytes)


def _all[T](call: Callable[[str], Awaitable[T]], keys: Sequence[bytes]) -> list[T | None]:
    """Return what the call answers for the path of each key, None for one that has no object."""

    async def one(key: bytes, free: asyncio.Semaphore) -> T | None:
        async with free:
            try:
                return await call(_path(key))
            except FileNotFoundError:
                return None

    async def every() -> list[T | None]:
        free = asyncio.Semaphore(AT_ONCE)
        async with asyncio.timeout(CALL_SECONDS):
            return await asyncio.gather(*(one(key, free) for key in keys))

    return asyncio.run(every())


def _path(key: bytes) -> str:
    name = key.hex()
    return f"{FOLDER}/{name[:2]}/{name[2:]}"
