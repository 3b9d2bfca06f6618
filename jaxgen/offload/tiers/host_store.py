"""KV blocks in host memory: a store of fixed size, with the keys of the prefix cache. Host only, no jax."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HostBlock:
    """Content of one block in host memory: K and V, and the inputs of all layers, or None without them."""

    kv: Any
    inputs: Any = None


class HostStore[Piece]:
    """At most ``num_blocks`` pieces, each the content of one block, by the block's key.

    A place is reserved before the copy to it begins, and filled when the copy has ended. If no place is free, the piece
    used least recently is evicted. Pinned pieces, from which data is being copied, are not evicted.
    """

    def __init__(self, num_blocks: int) -> None:
        """Raises ValueError if ``num_blocks`` is below 1."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be 1 or more, not {num_blocks}")
        self.num_blocks = num_blocks
        self.evictions = 0
        self._pieces: OrderedDict[bytes, Piece] = OrderedDict()  # least recently used first
        self._reserved: set[bytes] = set()
        self._pins: Counter[bytes] = Counter()

    def holds(self, key: bytes) -> bool:
        """Whether the key's piece is here and complete."""
        return key in self._pieces

    def __getitem__(self, key: bytes) -> Piece:
        """Return the key's piece. Raises KeyError if it is not here."""
        return self._pieces[key]

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def num_reserved(self) -> int:
        """Places that are reserved and not filled yet."""
        return len(self._reserved)

    def has_place(self, key: bytes) -> bool:
        """Whether the key's piece is here or a place for it is reserved."""
        return key in self._pieces or key in self._reserved

    def reserve(self, key: bytes) -> bool:
        """Reserve a place for the key's piece; return False if it has one, or all places are reserved or pinned."""
        if self.has_place(key):
            return False
        if len(self._pieces) + len(self._reserved) == self.num_blocks and not self._evict():
            return False
        self._reserved.add(key)
        return True

    def put(self, key: bytes, piece: Piece) -> None:
        """Put a piece in its reserved place. Raises KeyError if no place is reserved for the key."""
        self._reserved.remove(key)
        self._pieces[key] = piece

    def cancel_reservation(self, key: bytes) -> None:
        """Free the place of a piece that will not come. Raises KeyError if no place is reserved for the key."""
        self._reserved.remove(key)

    def pin(self, keys: Iterable[bytes]) -> list[Piece]:
        """Return the pieces of a chain of keys and keep them until ``unpin``. Raises KeyError if one is not here."""
        keys = list(keys)
        pieces = [self._pieces[key] for key in keys]
        self._pins.update(keys)
        for key in reversed(keys):  # a block is useful only with those before it
            self._pieces.move_to_end(key)
        return pieces

    def unpin(self, keys: Iterable[bytes]) -> None:
        """Allow eviction of these keys' pieces again. Raises ValueError for a key that is not pinned."""
        for key in keys:
            if self._pins[key] < 1:
                raise ValueError(f"{key.hex()} is not pinned")
            self._pins[key] -= 1
            if self._pins[key] == 0:
                del self._pins[key]

    def end_copies(self) -> None:
        """Free all reserved places, and allow eviction of all pieces."""
        self._reserved.clear()
        self._pins.clear()

    def _evict(self) -> bool:
        key = next((key for key in self._pieces if key not in self._pins), None)
        if key is None:
            return False
        del self._pieces[key]
        self.evictions += 1
        return True
