"""Begin restores for the scheduler, and let sequences wait for restores under way. Host only, no jax, no clock."""

from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from jaxgen.cache.host_tier import HostTier, state_key
from jaxgen.cache.prefix_cache import PrefixCache
from jaxgen.cache.state_snapshots import StateSnapshots
from jaxgen.cache.window_manager import WindowManager
from jaxgen.core.sequence import Restore, Sequence


@dataclass(frozen=True, slots=True)
class Hit:
    """What a waiting sequence finds of its tokens on the device and in host memory.

    It begins with ``blocks`` of the device, and its row gets the state after ``num_ready`` of these. If they are more,
    or blocks of ``keys`` follow, the state after all of them comes with a restore.
    """

    blocks: list[int]
    keys: list[bytes]
    """Of blocks in host memory."""
    num_ready: int
    num_known: int
    """Blocks that device and host have one after the other, whether the other parts of the cache agree or not."""
    waits: bool = False
    """Whether the sequence computes nothing before all has come, since blocks of windows may come too."""

    @property
    def length(self) -> int:
        """Blocks after which the sequence continues once all has come."""
        return len(self.blocks) + len(self.keys)

    @property
    def is_ready(self) -> bool:
        """Whether the sequence can compute the tokens after the device's blocks."""
        return self.num_ready == len(self.blocks) and not self.waits


class Restorer:
    """Begins restores of blocks that the prefix cache has keys for and the tier has in host memory."""

    def __init__(
        self,
        tier: HostTier,
        prefixes: PrefixCache,
        states: StateSnapshots | None,
        windows: tuple[WindowManager, ...] = (),
    ) -> None:
        """``states``: the snapshots on the device; None: the model has no states. ``windows``: the kinds with one."""
        self._tier = tier
        self._prefixes = prefixes
        self._states = states
        self._windows = windows
        self._begun: list[Restore] = []
        self._under_way: list[tuple[Restore, frozenset[bytes]]] = []  # with all keys that it was planned for

    def look_up(self, sequence: Sequence) -> Hit:
        """Return what a waiting sequence begins with, and what it would restore.

        States and blocks of windows that only the host has are used where they come sooner than the tokens since what
        the device has are computed.
        """
        prefixes = self._prefixes
        blocks = prefixes.look_up_blocks(sequence)
        keys = list(takewhile(self._tier.holds, prefixes.keys_from(sequence, len(blocks))))
        ready, known = prefixes.agreed(sequence, 0, len(blocks)), len(blocks) + len(keys)
        length = prefixes.agreed(sequence, ready, known, host=True)
        comes = self._states is not None and length > ready and not self._states.holds(sequence, length)
        if length > ready and (self._windows or (self._states is not None and ready < len(blocks))):
            copied = max(0, length - len(blocks)), *[len(one.lacking(sequence, length)) for one in self._windows]
            if not self._tier.pays(length - ready, ready * prefixes.block_size, copied, with_state=comes):
                length = ready
        waits = bool(self._windows) and length > ready
        return Hit(blocks[:length], keys[: max(0, length - len(blocks))], ready, known, waits)

    def keep(self, sequence: Sequence, hit: Hit) -> None:
        """Keep what the host has of a hit until ``begin``. Blocks given meanwhile may push others to the host."""
        self._tier.pin(self._from_host(sequence, hit))

    def begin(self, sequence: Sequence, hit: Hit, *, free_tokens: int, num_waiting: int) -> None:
        """Begin a restore for a sequence that has just got its blocks, if the tier's planner wants one.

        It covers the blocks in host memory that follow the sequence's cached ones, and the state and the windows after
        them. ``hit``: was kept.
        """
        first, state = sequence.blocks.num_registered, None
        kept = self._from_host(sequence, hit)
        if self._states is not None and hit.length > hit.num_ready:
            place = self._states.hold(sequence, hit.length)
            if place is not None:
                state = state_key(sequence.blocks.keys[hit.length - 1]), place
        restore = self._tier.plan_restore(
            *(sequence, first, hit.keys),
            free_tokens=free_tokens,
            num_waiting=num_waiting,
            state=state,
            windows=tuple([window.hold(sequence, hit.length) for window in self._windows]) if hit.waits else (),
            can_compute=hit.is_ready,
        )
        self._tier.unpin(kept)
        if restore is not None:
            sequence.blocks.restore = restore
            self._begun.append(restore)
            self._under_way.append((restore, frozenset(kept)))
        elif self._states is not None:
            self._states.drop(sequence)

    def take_begun(self) -> tuple[Restore, ...]:
        """Return the restores begun since the last call."""
        begun, self._begun = tuple(self._begun), []
        return begun

    def expect(self, sequence: Sequence, num_waiting: int) -> None:
        """Fetch blocks of a sequence that has begun to wait into host memory, if there is a KV tier and that pays."""
        fetcher, prefixes = self._tier.fetcher, self._prefixes
        if fetcher is None:
            return
        hit, states = self.look_up(sequence), list[bytes]()
        keys = list(prefixes.keys_from(sequence, hit.num_known))
        if self._states is not None:
            states = [state_key(key) for key in prefixes.keys_from(sequence, hit.length)]
        if keys or states:
            start = hit.length * prefixes.block_size
            windows = partial(self._lacking, sequence, hit.num_known) if self._windows else None
            sequence.blocks.fetch = fetcher.fetch(sequence, start, keys, num_waiting, states, windows)

    def _lacking(self, sequence: Sequence, known: int, more: int) -> list[bytes]:
        """Return the keys of windows that neither device nor host has to go on after ``known + more`` blocks."""
        keys = [key for window in self._windows for key in window.lacking(sequence, known + more)]
        return [key for key in keys if not self._tier.holds(key)]

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
        wanted = self._from_host(sequence, self.look_up(sequence))
        for restore, keys in self._under_way:
            if 0 < len(wanted) <= 2 * sum(key in keys for key in wanted):
                return restore
        return None

    def _from_host(self, sequence: Sequence, hit: Hit) -> list[bytes]:
        """Return the keys in host memory of what a sequence would restore."""
        keys, states = hit.keys, self._states
        if hit.waits:
            keys = [key for window in self._windows for key in window.lacking(sequence, hit.length)] + keys
        if states is None or hit.length == hit.num_ready or states.holds(sequence, hit.length):
            return keys
        return [state_key(sequence.blocks.keys[hit.length - 1]), *keys]
