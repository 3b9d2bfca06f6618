"""Decide what of one pool of the device goes to host memory, and when. Host only, no jax, no clock.

What has no owner is copied to the host, a few pieces with every step, before the device needs its place. What is
evicted before that is copied at once if the copies under way leave room; otherwise it is lost.
"""

from collections import OrderedDict
from collections.abc import Callable

from jaxgen.core.step_plan import Save
from jaxgen.offload.tiers.host_store import HostBlock, HostStore


class Saver:
    """Copies of a pool's pieces that are to go to the host store: blocks, or snapshots. It is the pool's watcher."""

    def __init__(
        self,
        store: HostStore[HostBlock],
        most_saving: int,
        *,
        places: int = 1,
        kind: int = 0,
        name: Callable[[bytes], bytes] = bytes,
        has_inputs: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """``most_saving``: pieces that may be copied at a time. ``places``: of the store, for each piece.

        ``kind``: the number of the kind of cache that blocks are of. ``name``: makes the store's key of the pool's.
        ``has_inputs``: whether a block has layer inputs. Raises ValueError if ``most_saving`` is below 1: pieces would
        wait for ever.
        """
        if most_saving < 1:
            raise ValueError(f"most_saving must be 1 or more, not {most_saving}")
        self._store = store
        self._most_saving = most_saving
        self._places = places
        self._kind = kind
        self._name = name
        self._has_inputs = has_inputs
        self._candidates: OrderedDict[bytes, int] = OrderedDict()
        self._saves: list[Save] = []
        self._under_way: set[bytes] = set()
        """Keys of the copies that were begun and have not ended."""
        self.lost = self.saved = self.failed = 0
        self.is_open = True
        """Whether anything is copied; see ``close``."""

    @property
    def has_saves(self) -> bool:
        """Whether anything waits to be copied, or is being copied."""
        return bool((self.is_open and self._candidates) or self._saves or self._under_way)

    def holds(self, key: bytes) -> bool:
        """Whether the host has the piece of the pool's key, complete."""
        return self._store.holds(self._name(key))

    def cached(self, block: int, key: bytes) -> None:
        """Note that a piece has no owner any more; its content stays until it is evicted."""
        name = self._name(key)
        if not self._store.has_place(name) and self._places <= self._store.num_blocks:
            self._candidates[name] = block
            self._candidates.move_to_end(name)

    def evicted(self, block: int, key: bytes) -> None:
        """Save a piece now if it waits to be saved, because the next step may overwrite it."""
        name = self._name(key)
        waits = self._candidates.pop(name, None) is not None
        if waits and not self._save(block, name) and not self._store.has_place(name):
            self.lost += 1

    def forgotten(self) -> None:
        """Drop all pieces that wait to be saved, since the content of the device is unknown now."""
        for save in self._saves:
            self._store.cancel_reservation(save.key)
            self._under_way.discard(save.key)
        self._saves.clear()
        self._candidates.clear()

    def take(self) -> tuple[Save, ...]:
        """Return the pieces to copy before the step that is being planned."""
        while self.is_open and self._candidates and len(self._under_way) < self._most_saving:
            name, block = next(iter(self._candidates.items()))
            if not self._save(block, name) and not self._store.has_place(name):
                break  # all places are reserved or pinned: it waits for one
            del self._candidates[name]
        saves, self._saves = tuple(self._saves), []
        return saves

    def end(self, name: bytes, piece: HostBlock | None) -> None:
        """Note that the copy of this key of the store has ended; ``piece`` None: it failed."""
        self._under_way.discard(name)
        if piece is None:
            self._store.cancel_reservation(name)
            self.failed += 1
        else:
            self._store.put(name, piece)
            self.saved += 1

    def close(self) -> None:
        """Stop copying: there is no memory for it."""
        self.is_open = False

    def fail(self) -> None:
        """Note that no copy under way will end. The caller frees their places in the store."""
        self.failed += len(self._under_way)
        self._under_way.clear()

    def _save(self, block: int, name: bytes) -> bool:
        if not self.is_open or len(self._under_way) >= self._most_saving:
            return False
        if not self._store.reserve(name, self._places):
            return False
        self._under_way.add(name)
        self._saves.append(Save(block, name, self._has_inputs(block), self._kind))
        return True
