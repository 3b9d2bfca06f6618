"""KV blocks and snapshots in host memory: a store of fixed size, by the prefix cache's keys. Host only, no jax."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxgen.cache.host_tier import is_state_key


@dataclass(frozen=True, slots=True)
class HostBlock:
    """Content of one block in host memory: K and V, and the inputs of all layers, or None without them.

    Of a snapshot: the states of the layers that have one, in place of K and V.
    """

    kv: Any
    inputs: Any = None


class HostStore[Piece]:
    """``num_blocks`` places, each for the content of one block. Pieces are found by key.

    A snapshot takes as many places as blocks have its bytes. Places are reserved before the copy to them begins, and
    filled when the copy has ended. If too few are free, the pieces used least recently are evicted, blocks and
    snapshots alike. So what is used decides how many there are of each. Pinned pieces, from which data is being copied,
    are not evicted.
    """

    def __init__(self, num_blocks: int) -> None:
        """Raises ValueError if ``num_blocks`` is below 1."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be 1 or more, not {num_blocks}")
        self.num_blocks = num_blocks
        self.evictions = 0
        self.num_filled = 0
        """Places of pieces that are complete."""
        self.num_snapshots = 0
        """Snapshots among these pieces."""
        self._pieces: OrderedDict[bytes, Piece] = OrderedDict()  # least recently used first
        self._places: dict[bytes, int] = {}
        """Places of each complete piece."""
        self._reserved: dict[bytes, int] = {}
        """Places of each piece that has not come yet."""
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
        """Pieces for which places are reserved, and that have not come yet."""
        return len(self._reserved)

    def has_place(self, key: bytes) -> bool:
        """Whether the key's piece is here or places for it are reserved."""
        return key in self._pieces or key in self._reserved

    def reserve(self, key: bytes, places: int = 1) -> bool:
        """Reserve places for the key's piece; return False if it has some, or too many are reserved or pinned."""
        if self.has_place(key) or not self._make_room(places):
            return False
        self._reserved[key] = places
        return True

    def put(self, key: bytes, piece: Piece) -> None:
        """Put a piece in its reserved places. Raises KeyError if none are reserved for the key."""
        self._places[key] = self._reserved.pop(key)
        self.num_filled += self._places[key]
        self.num_snapshots += is_state_key(key)
        self._pieces[key] = piece

    def cancel_reservation(self, key: bytes) -> None:
        """Free the places of a piece that will not come. Raises KeyError if none are reserved for the key."""
        del self._reserved[key]

    def discard(self, key: bytes) -> None:
        """Remove the key's piece, if it is here."""
        if self._pieces.pop(key, None) is not None:
            self.num_filled -= self._places.pop(key)
            self.num_snapshots -= is_state_key(key)

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

    def _make_room(self, places: int) -> bool:
        """Evict pieces until ``places`` are free; return False, and evict none, if that cannot be."""
        room = self.num_blocks - sum(self._reserved.values())
        if places > 1 and places > room - sum([self._places.get(key, 0) for key in self._pins]):
            return False
        while self.num_filled + places > room:
            if not self._evict():
                return False
        return True

    def _evict(self) -> bool:
        """Evict the piece used least recently, except pinned ones; return whether there was one."""
        key = next((key for key in self._pieces if key not in self._pins), None)
        if key is None:
            return False
        self.discard(key)
        self.evictions += 1
        return True
