"""Bring blocks from a KV tier into host memory for sequences that wait. Host only, no jax.

A sequence's blocks are looked up when it arrives, if fetching all of them would be faster than computing them. The
blocks that are found are read a few at a time. Once nothing else keeps it from beginning, the sequence waits at most as
long as computing them would take. What arrived by then is used, and what comes later is there for others.

Blocks of a model with states are of use only up to a snapshot. So the last one that the tier has is read before the
blocks up to it. Blocks of windows at the end of what the tier has are read first too. If one is not there, no more is
read.
"""

import logging
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from jaxgen.cache.host_tier import is_state_key, kind_of
from jaxgen.core.sequence import Fetch, Sequence, SequenceStatus
from jaxgen.offload.tiers.host_store import HostBlock, HostStore
from jaxgen.offload.tiers.kv_tier.kv_tier import KVTier

logger = logging.getLogger(__name__)

MAX_WAIT = 5.0
"""Most seconds that a sequence waits for blocks, however long computing them would take."""
PROBE_SECONDS = 30.0
"""Seconds without a read after which one block of a slow tier is read, as it may be faster now."""
COMPARE_ONE_IN = 64
"""In one of this number of fetches, the last block is computed again and compared."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Whether to fetch blocks, and how many seconds a sequence should wait for them at most."""

    pays: bool
    max_wait: float = inf


FetchPlanner = Callable[[int, int, int, int], FetchPlan]
"""(blocks, tokens before them, further places of the host store to read, waiting sequences) -> their FetchPlan."""


class Prefetcher:
    """Decides what is fetched from a KV tier, and enters it into the host store: a ``Fetcher``.

    It takes half of the host store at most for sequences that wait.
    """

    def __init__(
        self,
        tier: KVTier,
        store: HostStore[HostBlock],
        planner: FetchPlanner,
        *,
        batch: int,
        compares: bool,
        clock: Callable[[], float],
        places: abc.Sequence[int] = (1,),
        state_places: int = 0,
    ) -> None:
        """``batch``: blocks that are read together. ``compares``: blocks computed again have the bits of those kept.

        ``places``: of the host store, for a block of each kind of cache; ``state_places``: for a snapshot.
        """
        self.tier = tier
        self._planner = planner
        self._store = store
        self._batch = batch
        self._compares = compares
        self._places_of_kinds, self._state_places = tuple(places), state_places
        self._clock = clock
        self._fetches: list[Fetch] = []
        self._abandoned: set[Fetch] = set()
        """Fetches that were given up and have not ended: nothing else is asked of the tier meanwhile."""
        self._pinned: dict[Fetch, list[bytes]] = {}
        """Blocks that fetches under way have put into the host store."""
        self._num_compared = 0
        """Fetches so far of which the last block could be compared."""
        self._last_asked = -inf
        """When blocks were read last, or a slow tier was probed."""

    @property
    def busy(self) -> bool:
        """Whether anything is on its way."""
        return any(not fetch.ended for fetch in self._fetches)

    def keep(self, key: bytes, block: HostBlock) -> None:
        """Write a block to the tier that host memory has now."""
        self.tier.keep(key, block)

    def poll(self) -> None:
        """Enter what was read since the last call, and ask for more."""
        self.tier.poll()

    def fetch(
        self,
        sequence: Sequence,
        start: int,
        keys: abc.Sequence[bytes],
        num_waiting: int,
        states: abc.Sequence[bytes] = (),
        windows: Callable[[int], list[bytes]] | None = None,
    ) -> Fetch | None:
        """See Fetcher."""
        self.poll()  # an engine that had nothing to do has not: a late answer may have come
        self._fetches = [fetch for fetch in self._fetches if not fetch.ended or _waits(fetch)]
        first = keys[0] if keys else states[-1]
        for fetch in self._fetches:
            if not fetch.ended and (first in fetch.keys or first in fetch.states):
                return fetch
        places = self._store.num_blocks // 2 - sum(map(self._places, self._fetches))
        places -= 0 if windows is None else sum(map(self._places_of, windows(len(keys))))
        room = max(0, places - (self._state_places if states else 0)) // self._places_of_kinds[0]
        states, keys = states[: len(states) - len(keys[room:])], keys[:room]
        if not (keys or states) or places < self._state_places:
            return None
        fetch = Fetch(sequence, start, list(keys), num_waiting, list(states), windows)
        self._begin(fetch)
        if not fetch.ended:
            self._fetches.append(fetch)
        return fetch

    def may_wait(self, fetch: Fetch) -> bool:
        """See Fetcher."""
        if fetch.ended or self._abandoned or not fetch.max_wait:
            return False
        now = self._clock()
        if fetch.waited_from is None:
            fetch.waited_from = now
        if now - fetch.waited_from < fetch.max_wait:
            return True
        self._abandoned.add(fetch)
        self.tier.stats.timeouts += 1
        logger.info("the KV tier %s is slow: blocks are computed until it answers", self.tier.name)
        return False

    def fail(self) -> None:
        """End all fetches; nothing is pinned for them any more. Answers that come later are dropped."""
        for fetch in (*self._fetches, *self._abandoned):
            fetch.ended = True
        self._fetches.clear()
        self._abandoned.clear()
        self._pinned.clear()

    def _begin(self, fetch: Fetch) -> None:
        """Look the blocks of a fetch up, if they would come sooner than they are computed, or to probe a slow tier."""
        plan = self._plan(fetch, len(fetch.states or fetch.keys))
        if not plan.pays:
            if self._abandoned or not fetch.keys or self._clock() - self._last_asked < PROBE_SECONDS:
                fetch.ended = True
                return
            self._last_asked = self._clock()
            del fetch.keys[1:]
            fetch.states.clear()
            fetch.at_end = None
        fetch.max_wait = min(plan.max_wait, MAX_WAIT) if plan.pays else 0.0
        asked = not self._abandoned and self.tier.look_up(
            tuple(fetch.keys), partial(self._found, fetch), tuple(fetch.states)
        )
        fetch.ended = not asked

    def _places(self, fetch: Fetch) -> int:
        """Return the places of the host store that a fetch takes."""
        blocks = sum([self._places_of(key) for key in fetch.keys if not is_state_key(key)])
        windows = [] if fetch.at_end is None or fetch.found else fetch.at_end(len(fetch.keys))
        return blocks + sum(map(self._places_of, windows)) + (self._state_places if fetch.states else 0)

    def _places_of(self, key: bytes) -> int:
        return self._places_of_kinds[kind_of(key)]

    def _plan(self, fetch: Fetch, again: int) -> FetchPlan:
        """Return whether a fetch pays; ``again``: blocks that are computed otherwise."""
        under_way = [other for other in self._fetches if not other.ended]
        ahead = sum([self._places(one) - sum(map(self._places_of, one.keys[: one.num_arrived])) for one in under_way])
        if fetch in self._fetches:
            ahead -= self._places(fetch)
        return self._planner(again, fetch.start, ahead + self._places(fetch) - again, fetch.num_waiting)

    def _found(self, fetch: Fetch, num_found: int) -> None:
        """Begin to read the blocks that the tier has; ``num_found``: as ``KVTier.look_up`` tells it."""
        if fetch.ended:
            return
        blocks = max(0, num_found - max(0, len(fetch.states) - len(fetch.keys)))
        self.tier.stats.hit_blocks += blocks
        self.tier.stats.missed_blocks += len(fetch.keys) - blocks
        del fetch.keys[blocks:]
        fetch.found = True
        probes = fetch.max_wait == 0
        if fetch.states:
            if num_found:
                fetch.keys.insert(0, fetch.states[num_found - 1])
        elif fetch.at_end is not None:
            fetch.keys[:0] = fetch.at_end(blocks) if blocks else []
        elif num_found > 1 and self._compares and not probes:
            self._num_compared += 1
            if self._num_compared % COMPARE_ONE_IN == 0:
                self.tier.compare(fetch.keys.pop())
        again = num_found if fetch.states or fetch.at_end else len(fetch.keys)
        if not probes and num_found and not self._plan(fetch, again).pays:
            fetch.keys.clear()
        self._read_next(fetch, afresh=probes)

    def _read_next(self, fetch: Fetch, *, afresh: bool = False) -> None:
        keys = fetch.keys[fetch.num_arrived :][: self._batch]
        wanted = keys and fetch not in self._abandoned and _waits(fetch)
        if wanted and self.tier.read(keys, partial(self._enter, fetch, keys), afresh=afresh):
            self._last_asked = self._clock()
        else:
            self._end(fetch)

    def _enter(self, fetch: Fetch, keys: abc.Sequence[bytes], blocks: list[HostBlock]) -> None:
        """Put blocks that were read into the host store, and read the next."""
        if fetch.ended:
            return
        for key, block in zip(keys, blocks, strict=False):
            if self._store.reserve(key, self._state_places if is_state_key(key) else self._places_of(key)):
                self._store.put(key, block)
                self._store.pin([key])  # until the end, lest what comes later takes its place
                self._pinned.setdefault(fetch, []).append(key)
            elif not self._store.has_place(key):  # all places are pinned or reserved
                self._end(fetch)
                return
            fetch.num_arrived += 1
        if len(blocks) < len(keys):
            self._end(fetch)
        else:
            self._read_next(fetch)

    def _end(self, fetch: Fetch) -> None:
        fetch.ended = True
        del fetch.keys[fetch.num_arrived :]
        self._abandoned.discard(fetch)
        self._store.unpin(self._pinned.pop(fetch, ()))


def _waits(fetch: Fetch) -> bool:
    return fetch.sequence.status is SequenceStatus.WAITING
