"""Which blocks of the KV cache are free: integers only. Host only, no jax."""

from collections.abc import Sequence


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free."""


class BlockPool:
    """Hands out the block ids 0 to ``num_blocks - 1``; each id has one owner at most.

    The block freed last goes out first: O(1), and a lightly loaded engine keeps touching the same few blocks, so a
    large cache on a CPU takes memory only as it is used. A new pool hands out 0, 1, 2, ..., and freed ids go out again
    in the order in which they were given to ``free``.
    """

    def __init__(self, num_blocks: int) -> None:
        """Raises ValueError if ``num_blocks`` is below 1."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be 1 or more, not {num_blocks}")
        self._free = list(range(num_blocks - 1, -1, -1))
        self._owned = bytearray(num_blocks)

    @property
    def num_blocks(self) -> int:
        return len(self._owned)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes ``count`` blocks. Raises OutOfBlocksError, taking none, when fewer are free."""
        if count < 0:
            raise ValueError(f"count must be 0 or more, not {count}")
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._owned[block] = 1
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Gives blocks back. Raises ValueError at an id that is free already or none of the pool's."""
        for block in reversed(blocks):
            if not 0 <= block < len(self._owned) or not self._owned[block]:
                raise ValueError(f"block {block} is not allocated")
            self._owned[block] = 0
            self._free.append(block)
