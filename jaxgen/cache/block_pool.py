"""Track which blocks of the KV cache are free, cached or in use, by id, owner count and key. Host only, no jax."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol


class PoolWatcher(Protocol):
    """Is notified when the pool caches, evicts or forgets blocks whose content is known."""

    def cached(self, block: int, key: bytes) -> None:
        """Note that the block has no owner any more and keeps its content."""

    def evicted(self, block: int, key: bytes) -> None:
        """Note that the block's content is given up and may be overwritten from the next step on."""

    def forgotten(self) -> None:
        """Note that the content of all blocks is unknown now."""


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than can be allocated."""


class BlockPool:
    """Hands out the block ids 0 to ``num_blocks - 1`` and counts the owners of each.

    A block is in use (one owner or more), cached (no owner, but its content is known by a key and can be found again)
    or free. ``num_free`` blocks can be allocated: the free ones first, then the cached ones, least recently used first.

    The block freed last is handed out first. This is O(1), and a lightly loaded engine keeps using the same few blocks,
    so a large cache on a CPU takes memory only as it is used. A new pool hands out 0, 1, 2, ..., and freed ids are
    handed out again in the order in which they were given to ``release``.
    """

    def __init__(self, num_blocks: int, *watchers: PoolWatcher, index: PoolWatcher | None = None) -> None:
        """``watchers``: are notified of blocks that were full when registered. ``index``: is notified of all blocks.

        Raises ValueError if ``num_blocks`` is below 1.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be 1 or more, not {num_blocks}")
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._owners = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._by_key: dict[bytes, int] = {}
        self._watchers = watchers
        self._watchers_of_all = watchers if index is None else (*watchers, index)
        self._partial: set[int] = set()
        """Blocks that were registered when they were not full."""

    @property
    def num_blocks(self) -> int:
        return len(self._owners)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, including cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Allocate ``count`` blocks, of unknown content. Raises OutOfBlocksError and takes none if there are fewer."""
        if count < 0:
            raise ValueError(f"count must be 0 or more, not {count}")
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.num_free} free")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._owners[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Give each block one more owner. Raises ValueError for a block whose content is not known."""
        for block in blocks:
            if self._keys[block] is None:
                raise ValueError(f"block {block} has no known content to share")
            if self._owners[block] == 0:
                del self._cached[block]
            self._owners[block] += 1

    def release(self, blocks: Sequence[int], *, evict_first: bool = False, told: bool = True) -> None:
        """Take one owner from each block. Blocks without an owner become cached if their content is known, else free.

        The last of ``blocks`` will be evicted first, because a block is useful only with those before it.
        ``evict_first``: all of them will be evicted before any other cached block. ``told`` False: watchers are not
        notified of blocks that become cached. Raises ValueError for an id that is not in use or not in the pool.
        """
        for block in blocks if evict_first else reversed(blocks):
            if not 0 <= block < len(self._owners) or self._owners[block] == 0:
                raise ValueError(f"block {block} is not in use")
            self._owners[block] -= 1
            if self._owners[block] > 0:
                continue
            key = self._keys[block]
            if key is None:
                self._free.append(block)
                continue
            self._cached[block] = None
            self._cached.move_to_end(block, last=not evict_first)
            for watcher in self._watchers_of(block) if told else ():
                watcher.cached(block, key)

    def register(self, block: int, key: bytes, *, full: bool = True) -> bool:
        """Record the content of a block in use, by a key that no other content has. ``full``: of all its slots.

        If another block is known for the same content, that one stays known and this one does not become so: returns
        False. Raises ValueError for a block that is not in use or whose content is known.
        """
        if self._owners[block] == 0 or self._keys[block] is not None:
            raise ValueError(f"block {block} is not in use, or its content is known")
        if key in self._by_key:
            return False
        self._keys[block] = key
        self._by_key[key] = block
        if not full:
            self._partial.add(block)
        return True

    def find(self, key: bytes) -> int | None:
        """Return the block, in use or cached, that has the content of this key; None if there is none."""
        return self._by_key.get(key)

    def use(self, block: int) -> None:
        """Note that the content of a block was read. If nobody owns it, it will be evicted last."""
        if block in self._cached:
            self._cached.move_to_end(block)

    def num_owners(self, block: int) -> int:
        return self._owners[block]

    def forget(self) -> None:
        """Forget the content of all blocks."""
        self._free += self._cached
        self._cached.clear()
        self._by_key.clear()
        self._keys = [None] * len(self._keys)
        self._partial.clear()
        for watcher in self._watchers_of_all:
            watcher.forgotten()

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        key = self._keys[block]
        assert key is not None, "cached means known"
        del self._by_key[key]
        self._keys[block] = None
        for watcher in self._watchers_of(block):
            watcher.evicted(block, key)
        self._partial.discard(block)
        return block

    def _watchers_of(self, block: int) -> tuple[PoolWatcher, ...]:
        if block not in self._partial:
            return self._watchers_of_all
        return self._watchers_of_all[len(self._watchers) :]
