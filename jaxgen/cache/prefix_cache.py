"""The prefix cache: full blocks found again by what led to them, so that a known prefix is not computed twice.

Host only, no jax. The key of a sequence's block i is a chained hash,

    key[-1] = BLAKE2b-128(UTF-8 of cache_salt, or nothing; person "salt")
    key[i]  = BLAKE2b-128(key[i - 1] + the block's tokens as little-endian int32)

so equal keys mean equal salts and equal tokens from the first to the block's last. The hash is collision-resistant
(about 2**64 attempts) and ``person`` keeps salts apart from blocks: nobody can make a prompt, or a salt, that hits
blocks of other tokens or of another salt.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import takewhile
from struct import Struct

from jaxgen.cache.block_pool import BlockPool
from jaxgen.core.sequence import Sequence

KEY_BYTES = 16


def root_key(cache_salt: str | None) -> bytes:
    """The key before a sequence's first block, 16 bytes."""
    return blake2b((cache_salt or "").encode(), digest_size=KEY_BYTES, person=b"salt").digest()


class PrefixCache:
    """Looks blocks up in a pool, and tells the pool what blocks hold.

    A block may be registered as soon as the step that writes it is planned: steps run in the order planned, and a step
    writes a layer's K and V before any of its rows attends. Only full blocks are registered, so a block that is shared
    is never written again.
    """

    def __init__(self, pool: BlockPool, block_size: int, *, enabled: bool = True) -> None:
        """``enabled`` False: nothing is registered, and so nothing found."""
        self.enabled = enabled
        self._pool = pool
        self._block_size = block_size
        self._tokens = Struct(f"<{block_size}i")

    def may_look_up(self, sequence: Sequence) -> bool:
        """Whether what is cached is of use to it."""
        return self.enabled and not sequence.request.wants_every_token

    def look_up(self, sequence: Sequence) -> list[int]:
        """The longest chain of blocks that hold the K and V of its first tokens.

        One token at least is left to compute, for its logits. No token may be pending.
        """
        blocks: list[int] = []
        for key in self._keys_from(sequence, 0):
            block = self._pool.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_common(self, one: Sequence, other: Sequence) -> int:
        """How many blocks of the one, counted from the first, may be found for it when the other is computed."""
        first = next(self._keys_from(one, 0), None)
        if first is None or first != next(self._keys_from(other, 0), None):
            return 0  # most
        keys, others = (list(self._keys_from(sequence, 0)) for sequence in (one, other))
        # Equal keys have equal ones before them.
        return bisect_left(range(min(len(keys), len(others))), True, key=lambda i: keys[i] != others[i])

    def look_up_host(self, sequence: Sequence, first: int, holds: Callable[[bytes], bool]) -> list[bytes]:
        """The keys of the longest chain of blocks from block ``first`` on that the host ``holds``."""
        return list(takewhile(holds, self._keys_from(sequence, first)))

    def _keys_from(self, sequence: Sequence, first: int) -> Iterator[bytes]:
        """Keys of what may be found for it, from block ``first`` on."""
        if self.may_look_up(sequence):
            for index in range(first, (len(sequence.tokens) - 1) // self._block_size):
                yield self._key(sequence, index)

    def register(self, sequence: Sequence) -> None:
        """Makes known those of its blocks that are full of tokens both computed and known on the host."""
        if not self.enabled:
            return
        full = min(sequence.num_computed, len(sequence.tokens)) // self._block_size
        for index in range(sequence.num_registered, full):
            self._pool.register(sequence.block_table[index], self._key(sequence, index))
            sequence.num_registered += 1

    def _key(self, sequence: Sequence, index: int) -> bytes:
        """Key of its block ``index``, at most one beyond those asked for before."""
        keys = sequence.block_keys
        if index == len(keys):
            previous = keys[-1] if keys else root_key(sequence.request.cache_salt)
            tokens = sequence.tokens[index * self._block_size : (index + 1) * self._block_size]
            keys.append(blake2b(previous + self._tokens.pack(*tokens), digest_size=KEY_BYTES).digest())
        return keys[index]
