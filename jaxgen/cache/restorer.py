"""Begin restores for the scheduler, and let sequences wait for restores under way. Host only, no jax, no clock."""

from jaxgen.cache.host_tier import HostTier
from jaxgen.cache.prefix_cache import PrefixCache
from jaxgen.core.sequence import Restore, Sequence


class Restorer:
    """Begins restores of blocks that the prefix cache has keys for and the tier has in host memory."""

    def __init__(self, tier: HostTier, prefixes: PrefixCache) -> None:
        self._tier = tier
        self._prefixes = prefixes
        self._begun: list[Restore] = []
        self._under_way: list[tuple[Restore, frozenset[bytes]]] = []  # with all keys that it was planned for

    def begin(self, sequence: Sequence, *, free_tokens: int, num_waiting: int) -> None:
        """Begin a restore for a sequence that has just got its blocks, if the tier's planner wants one.

        It covers the blocks in host memory that follow the sequence's cached ones.
        """
        first = sequence.blocks.num_registered
        keys = self._known(sequence, first)
        restore = self._tier.plan_restore(sequence, first, keys, free_tokens=free_tokens, num_waiting=num_waiting)
        if restore is not None:
            sequence.blocks.restore = restore
            self._begun.append(restore)
            self._under_way.append((restore, frozenset(keys)))

    def take_begun(self) -> tuple[Restore, ...]:
        """Return the restores begun since the last call."""
        begun, self._begun = tuple(self._begun), []
        return begun

    def expect(self, sequence: Sequence, num_waiting: int) -> None:
        """Fetch blocks of a sequence that has begun to wait into host memory, if there is a KV tier and that pays."""
        fetcher = self._tier.fetcher
        if fetcher is None:
            return
        first = len(self._prefixes.look_up(sequence))
        first += len(self._known(sequence, first))
        keys = self._prefixes.look_up_host(sequence, first, lambda _: True)
        if keys:
            sequence.blocks.fetch = fetcher.fetch(sequence, first * self._prefixes.block_size, keys, num_waiting)

    def waits(self, sequence: Sequence, num_waiting: int) -> bool:
        """Whether a sequence that could begin should wait for blocks that are on their way."""
        return self.waits_for_another(sequence) or self._waits_for_fetch(sequence, num_waiting)

    def _waits_for_fetch(self, sequence: Sequence, num_waiting: int) -> bool:
        fetcher, blocks = self._tier.fetcher, sequence.blocks
        if fetcher is None:
            return False
        fetch = blocks.fetch
        if fetch is None or (fetch.ended and fetch.sequence is not sequence):  # another's may have brought only a part
            self.expect(sequence, num_waiting)
        return blocks.fetch is not None and fetcher.may_wait(blocks.fetch)

    def waits_for_another(self, sequence: Sequence) -> bool:
        """Whether half or more of the blocks that a waiting sequence would restore are being restored for another one.

        It can share these blocks then. While the sequence waits, it waits for one such restore only.
        """
        blocks = sequence.blocks
        if blocks.awaited is None:
            blocks.awaited = self._bringing(sequence)
        return blocks.awaited is not None and blocks.awaited.is_under_way

    def _bringing(self, sequence: Sequence) -> Restore | None:
        self._under_way = [(restore, keys) for restore, keys in self._under_way if restore.is_under_way]
        if not self._under_way:
            return None
        wanted = self._known(sequence, len(self._prefixes.look_up(sequence)))
        for restore, keys in self._under_way:
            if 0 < len(wanted) <= 2 * sum(key in keys for key in wanted):
                return restore
        return None

    def _known(self, sequence: Sequence, first: int) -> list[bytes]:
        return self._prefixes.look_up_host(sequence, first, self._tier.holds)
