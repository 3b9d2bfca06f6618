"""The prefix cache: find full blocks again by their tokens and those before, so that a prefix is not computed twice.

Host only, no jax. The key of a sequence's block i is a chained hash,

    key[-1] = BLAKE2b-128(UTF-8 of cache_salt, or nothing; person "salt")
    key[i]  = BLAKE2b-128(key[i - 1] + the block's tokens as little-endian int32)

so equal keys mean equal salts and equal tokens from the first to the block's last. The hash is collision-resistant
(about 2**64 attempts), and ``person`` keeps salts apart from blocks. So no client can make a prompt or a salt that hits
blocks of other tokens or of another salt. The key of a block that a sequence left partly filled is the same hash of the
tokens in it, with the person "part".
"""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice, takewhile
from struct import Struct

from jaxgen.cache.beginnings import BlockBeginnings
from jaxgen.cache.block_log import BlockLog, BlockStored
from jaxgen.cache.block_pool import BlockPool
from jaxgen.cache.cache_part import CachePart
from jaxgen.core.sequence import Sequence

KEY_BYTES = 16
LEAST_COPIED = 2
"""Fewest tokens of a block that are worth a copy: one is what nearly every prompt begins with."""


def root_key(cache_salt: str | None) -> bytes:
    """Return the key before a sequence's first block, 16 bytes."""
    return blake2b((cache_salt or "").encode(), digest_size=KEY_BYTES, person=b"salt").digest()


class PrefixCache:
    """Looks blocks up in a pool, and registers blocks' contents there.

    A block may be registered as soon as the step that writes it is planned. Steps run in the order planned, and a step
    writes a layer's K and V before any of its rows attends. Only full blocks are registered, so a shared block is never
    written again.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        enabled: bool = True,
        log: BlockLog | None = None,
        beginnings: BlockBeginnings | None = None,
        parts: tuple[CachePart, ...] = (),
    ) -> None:
        """``enabled`` False: no block is registered, so none is found. ``log``: is told of full blocks.

        ``beginnings``: the pool's index of blocks; None: only full blocks are found. ``parts``: must agree
        on how much is found.
        """
        self.enabled = enabled
        self._log = log
        self._beginnings = beginnings
        self._pool = pool
        self._parts = parts
        self.block_size = block_size
        self._tokens = Struct(f"<{block_size}i")

    def may_look_up(self, sequence: Sequence) -> bool:
        """Whether a sequence may use cached blocks."""
        return self.enabled and not sequence.request.wants_every_token

    def begin_plan(self) -> None:
        """Let blocks be copied from that steps planned before have written."""
        if self._beginnings is not None:
            self._beginnings.begin_plan(self._pool)

    def look_up_beginning(self, sequence: Sequence, first: int) -> tuple[int | None, int]:
        """Return a block that begins with most tokens of a sequence's block ``first``, and how many; None: too few.

        The blocks before have the K and V of the sequence's tokens. At least one token is left to compute.
        """
        if self._beginnings is None or not self.may_look_up(sequence):
            return None, 0
        start = first * self.block_size
        tokens = sequence.tokens[start : min(start + self.block_size, len(sequence.tokens) - 1)]
        key, common = self._beginnings.longest(self._key_before(sequence, first), tokens)
        if key is None or common < LEAST_COPIED:
            return None, 0
        return self._pool.find(key), common

    def look_up(self, sequence: Sequence, first: int = 0) -> list[int]:
        """Return the longest chain of blocks that hold the K and V of a sequence's tokens from block ``first`` on.

        All parts of the cache agree on its end. At least one token is left to compute, for its logits. No token may be
        pending.
        """
        blocks = self.look_up_blocks(sequence, first)
        return blocks[: self.agreed(sequence, first, first + len(blocks)) - first]

    def look_up_blocks(self, sequence: Sequence, first: int = 0) -> list[int]:
        """Return the chain of ``look_up``, whether the other parts of the cache agree or not."""
        blocks: list[int] = []
        for key in self.keys_from(sequence, first):
            block = self._pool.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def agreed(self, sequence: Sequence, first: int, length: int, *, host: bool = False) -> int:
        """Return the most blocks, from ``first`` to ``length``, on which all parts agree; ``host``: see CachePart."""
        before = length + 1
        while first < length < before:
            before = length
            for part in self._parts:
                length = part.agrees(sequence, first, length, host=host)
        return length

    def keys_from(self, sequence: Sequence, first: int) -> Iterator[bytes]:
        """Yield the keys of a sequence's blocks that may be looked up, from block ``first`` on."""
        if self.may_look_up(sequence):
            for index in range(first, (len(sequence.tokens) - 1) // self.block_size):
                yield self._key(sequence, index)

    def register(self, sequence: Sequence) -> None:
        """Register a sequence's blocks that are full of tokens that are both computed and known on the host."""
        if not self.enabled:
            return
        full = min(sequence.num_computed, len(sequence.tokens)) // self.block_size
        blocks = sequence.blocks
        for index in range(blocks.num_registered, full):
            key = self._key(sequence, index)
            new = self._pool.register(blocks.table[index], key)
            blocks.num_registered += 1
            if new and self._log is not None:
                self._log.stored(self._stored(sequence, index))
            if new and self._beginnings is not None:
                self._beginnings.add(self._key_before(sequence, index), key, self._tokens_of(sequence, index))
            for part in self._parts:
                part.register(sequence, index, key)

    def register_rest(self, sequence: Sequence) -> None:
        """Register the block that a sequence, which is about to give its blocks back, has filled partly."""
        known = min(sequence.num_computed, len(sequence.tokens))
        index, rest = divmod(known, self.block_size)
        if not self.enabled or self._beginnings is None or rest < LEAST_COPIED:
            return  # nobody would find it, and it would take the place of a block that is found
        before, tokens = self._key_before(sequence, index), self._tokens_of(sequence, index)[:rest]
        key = blake2b(before + Struct(f"<{rest}i").pack(*tokens), digest_size=KEY_BYTES, person=b"part").digest()
        if self._pool.register(sequence.blocks.table[index], key, full=False):
            self._beginnings.add(before, key, tokens)

    def _stored(self, sequence: Sequence, index: int) -> BlockStored:
        """Return the event of block ``index``, whose key is known."""
        keys, tokens = sequence.blocks.keys, self._tokens_of(sequence, index)
        return BlockStored(keys[index], keys[index - 1] if index else None, tokens, sequence.request.cache_salt)

    def _key(self, sequence: Sequence, index: int) -> bytes:
        """Return the key of block ``index``, which is at most the one after those computed before."""
        keys = sequence.blocks.keys
        if index == len(keys):
            previous, tokens = self._key_before(sequence, index), self._tokens_of(sequence, index)
            keys.append(blake2b(previous + self._tokens.pack(*tokens), digest_size=KEY_BYTES).digest())
        return keys[index]

    @staticmethod
    def _key_before(sequence: Sequence, index: int) -> bytes:
        """Return the key before block ``index``, which is at most the one after those computed before."""
        return sequence.blocks.keys[index - 1] if index else root_key(sequence.request.cache_salt)

    def _tokens_of(self, sequence: Sequence, index: int) -> tuple[int, ...]:
        return tuple(sequence.tokens[index * self.block_size : (index + 1) * self.block_size])


class ComingPrefixes:
    """Finds the first blocks that sequences have in common while these are still to be computed.

    A tree of block keys. A sequence is at each of its keys from the first to one that no other sequence has, so what is
    not shared costs one key.
    """

    def __init__(self, prefixes: PrefixCache) -> None:
        self._prefixes = prefixes
        self._at: dict[bytes, dict[Sequence, None]] = {}  # in the order of joining
        self._depth: dict[Sequence, int] = {}

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._depth

    def join(self, sequence: Sequence) -> None:
        """Add a sequence."""
        self._depth[sequence] = 0
        for key in self._prefixes.keys_from(sequence, 0):
            others = self._at.get(key)
            if others is not None and len(others) == 1:
                self._deepen(next(iter(others)), self._depth[sequence] + 1)
            self._enter(sequence, key)
            if others is None:
                break

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence: it ends, or its blocks can be found in the cache."""
        for key in sequence.blocks.keys[: self._depth.pop(sequence)]:
            del self._at[key][sequence]
            if not self._at[key]:
                del self._at[key]

    def num_common(self, sequence: Sequence, order_key: tuple[int, float, int]) -> int:
        """Return how many first blocks of a sequence with this order key one before it will have computed.

        Of sequences with the same blocks only the one that joined first is asked for its place.
        """
        count, before = 0, None
        for key in self._prefixes.keys_from(sequence, 0):
            others = self._at.get(key)
            if others is None:
                break
            first = next(iter(others))
            if first is not before and first.standing.order_key >= order_key:
                break
            before, count = first, count + 1
            if len(others) == 1 and self._depth[first] == count:  # its further keys are in no place yet
                more = zip(*[self._prefixes.keys_from(s, count) for s in (sequence, first)], strict=False)
                return count + sum(1 for _ in takewhile(lambda keys: keys[0] == keys[1], more))
        return count

    def _deepen(self, sequence: Sequence, depth: int) -> None:
        """Let a sequence that is alone at its key number ``depth`` have its next one too."""
        if self._depth[sequence] == depth:
            for key in islice(self._prefixes.keys_from(sequence, depth), 1):
                self._enter(sequence, key)

    def _enter(self, sequence: Sequence, key: bytes) -> None:
        self._at.setdefault(key, {})[sequence] = None
        self._depth[sequence] += 1
