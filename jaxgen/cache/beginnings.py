"""Find the cached block that begins with the next tokens of a sequence. Host only, no jax."""

from collections import abc
from itertools import islice

from jaxgen.cache.block_pool import BlockPool

MOST_COMPARED = 32
"""Most blocks after one prefix that are compared, the newest first, so that a search takes a bounded time."""


class BlockBeginnings:
    """An index of blocks by the key of the block before them. The pool says which contents it gives up.

    A sequence can copy the beginning of a block that differs from its own only in later tokens. Blocks are found from
    the plan after the one in which they were added. Copies run before a step, so they cannot read what it writes.
    """

    def __init__(self) -> None:
        self._after: dict[bytes, dict[bytes, tuple[int, ...]]] = {}
        """By the key of the block before, the tokens of the blocks of each key."""
        self._before: dict[bytes, bytes] = {}
        """By the key of a block, the key of the block before it."""
        self._added: list[tuple[bytes, bytes, tuple[int, ...]]] = []

    def add(self, before: bytes, key: bytes, tokens: tuple[int, ...]) -> None:
        """Add the block ``key``, which begins with ``tokens`` and follows the block ``before``."""
        self._added.append((before, key, tokens))

    def begin_plan(self, pool: BlockPool) -> None:
        """Let blocks be found that were added before the plan that is made now."""
        for before, key, tokens in self._added:
            if pool.find(key) is not None:
                self._after.setdefault(before, {})[key] = tokens
                self._before[key] = before
        self._added.clear()

    def longest(self, before: bytes, tokens: abc.Sequence[int]) -> tuple[bytes | None, int]:
        """Return the key of the block after ``before`` that has most of ``tokens`` in common, and how many."""
        best, most = None, 0
        after = self._after.get(before, {})
        for key in islice(reversed(after), MOST_COMPARED):
            common = _num_common(after[key], tokens)
            if common > most:
                best, most = key, common
        return best, most

    def cached(self, block: int, key: bytes) -> None:
        """Note nothing: the content stays."""

    def evicted(self, block: int, key: bytes) -> None:
        """Drop a block whose content is given up."""
        del block  # contents are known by key
        before = self._before.pop(key, None)
        if before is not None:
            del self._after[before][key]
            if not self._after[before]:
                del self._after[before]

    def forgotten(self) -> None:
        """Drop all blocks."""
        self._after.clear()
        self._before.clear()
        self._added.clear()


def _num_common(tokens: abc.Sequence[int], other: abc.Sequence[int]) -> int:
    """Return how many first tokens are equal."""
    for index, (a, b) in enumerate(zip(tokens, other, strict=False)):
        if a != b:
            return index
    return min(len(tokens), len(other))
