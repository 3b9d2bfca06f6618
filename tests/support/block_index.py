"""An index of what a server's cache holds, as a router keeps it from the events' payloads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

type Path = tuple[Any, ...]
"""A salt, then the tokens of blocks from the first on: what the router itself hashes."""


@dataclass
class BlockIndex:
    """``paths``: of each block that is there, by the server's hash of it."""

    block_size: int = 0
    paths: dict[int, Path] = field(default_factory=dict)
    known: dict[int, Path] = field(default_factory=dict)
    """Of all blocks that ever were there: a block may outlive the one before it, and one after it come back."""

    def apply(self, payload: bytes) -> None:
        now, events, rank = msgpack.unpackb(payload)
        assert now > 1.7e9
        assert rank == 0
        for event in events:
            getattr(self, f"_{event.pop('type')}")(**event)

    def matched(self, tokens: Sequence[int], salt: str | None = None) -> int:
        """Return how many first tokens of a prompt are there."""
        path: Path = (salt,)
        held, count = set(self.paths.values()), 0
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            path = (*path, tuple(tokens[start : start + self.block_size]))
            if path not in held:
                break
            count += self.block_size
        return count

    def _BlockStored(  # noqa: N802
        self,
        block_hashes: list[int],
        parent_block_hash: int | None,
        token_ids: list[int],
        block_size: int,
        extra_keys: list[list[str] | None],
        medium: str,
        **_: Any,
    ) -> None:
        assert len(token_ids) == block_size * len(block_hashes)
        assert len(extra_keys) == len(block_hashes)
        assert medium == "GPU"
        self.block_size = block_size
        if parent_block_hash is None:
            path: Path = (extra_keys[0][0] if extra_keys[0] else None,)
        else:
            path = self.known[parent_block_hash]
        for index, one in enumerate(block_hashes):
            assert one not in self.paths, "it is stored already"
            path = (*path, tuple(token_ids[index * block_size : (index + 1) * block_size]))
            self.paths[one] = self.known[one] = path

    def _BlockRemoved(self, block_hashes: list[int], **_: Any) -> None:  # noqa: N802
        for one in block_hashes:
            del self.paths[one]

    def _AllBlocksCleared(self) -> None:  # noqa: N802
        self.paths.clear()
