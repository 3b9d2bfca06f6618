"""The interface of a store of bytes, of which a KV tier is made. Host only, no jax."""

from collections.abc import Buffer, Sequence
from typing import Protocol, runtime_checkable

MOST_BYTES = 2**30
"""Bytes of a value that is read where nobody says how long it may be."""


@runtime_checkable
class ByteStore(Protocol):
    """Values by keys of 16 bytes. Several processes may use it at once.

    It is called from worker threads, so a call may take its time. A key without a value is not an error. A
    call that fails raises any exception, and may be tried again later.
    """

    @property
    def name(self) -> str:
        """The store's name in logs."""
        ...

    def count(self, keys: Sequence[bytes]) -> int:
        """Return how many of the first keys have a value, up to the first that has none."""
        ...

    def last(self, keys: Sequence[bytes]) -> int:
        """Return the number of the last key that has a value, counted from 1; 0: none has one."""
        ...

    def get(self, keys: Sequence[bytes], longest: int = MOST_BYTES) -> list[bytes | None]:
        """Return the values of the keys; None for those without one. Notes that they were used.

        A value of more than ``longest`` bytes is not read whole: it comes back damaged.
        """
        ...

    def put(self, key: bytes, parts: Sequence[Buffer]) -> bool:
        """Store a value, which is made of these parts, unless the key has one; return whether it was stored.

        Others see all of it or nothing. A value that the key has already is noted as used.
        """
        ...

    def remove(self, key: bytes) -> None:
        """Remove the key's value, if it has one."""
        ...
