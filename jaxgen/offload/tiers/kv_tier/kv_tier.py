"""A KV tier: threads that write blocks to a store and read them back, so that no step waits. Host only, no jax."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Buffer, Callable, Sequence
from functools import partial
from hashlib import blake2b, sha256
from typing import Protocol

from jaxgen.cache.host_tier import is_state_key, kind_of
from jaxgen.core.errors import one_line
from jaxgen.core.stats import KVTierStats
from jaxgen.offload.planning.rates import LinkRate
from jaxgen.offload.tiers.host_store import HostBlock
from jaxgen.offload.tiers.kv_tier.health import Health
from jaxgen.offload.tiers.kv_tier.store import ByteStore
from jaxgen.offload.tiers.kv_tier.value import OVERHEAD_BYTES, DamagedError, content_of, frame
from jaxgen.offload.tiers.kv_tier.worker import Worker
from jaxgen.scheduling.average import Average

logger = logging.getLogger(__name__)

MOST_READS = 64
"""Calls of the reading thread that may wait: one for each sequence that waits for blocks."""
MOST_WRITTEN_BYTES = 256 * 2**20
"""Bytes of the blocks that may wait to be written."""
MOST_TO_COMPARE = 100
LEAST_SHARE = 0.01
"""Least share of a read's time that its bytes take: the time of a call varies."""
KEY_BYTES = 16


class BlockFormat(Protocol):
    """Makes bytes of blocks and blocks of bytes; called from worker threads. There is one for snapshots too."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a block without layer inputs."""
        ...

    @property
    def most_bytes(self) -> int:
        """Bytes of a block with all that it may have."""
        ...

    def parts(self, block: HostBlock) -> Sequence[Buffer]:
        """Return a block's bytes, in parts."""
        ...

    def block(self, content: memoryview) -> HostBlock:
        """Return the block of these bytes. Raises DamagedError if their number is wrong."""
        ...


class KVTier:
    """Blocks in a store that outlives the process, by the keys of the prefix cache within a namespace.

    The methods are the engine thread's, and none waits for the store. What is read comes with ``poll``.
    """

    def __init__(
        self,
        store: ByteStore,
        forms: Sequence[BlockFormat],
        namespace: bytes,
        *,
        secret: bytes = b"",
        state_form: BlockFormat | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``forms``: of blocks of each kind of cache; ``state_form``: of snapshots; None: the model has no states.

        ``namespace``: identifies all that decides a block's bits, except its tokens. ``secret``: seals values; empty:
        none is sealed. Blocks of other namespaces or secrets are not found.
        """
        self.stats = KVTierStats()
        """Counters; each is changed by one thread only, except dropped writes."""
        self._counting = threading.Lock()
        self.rate = LinkRate()
        """Of reads, checks included, beyond what a call takes that brings nothing."""
        self.call_seconds = Average()
        """Of looking up: what every call takes."""
        self._store = store
        self._forms, self._state_form = tuple(forms), state_form
        self._secret = secret
        self._namespace = blake2b(namespace, digest_size=32, key=sha256(secret).digest() if secret else b"").digest()
        self._clock = clock
        self._writing = Health(f"written to the KV tier {store.name}", clock)
        self._reading = Health(f"read from the KV tier {store.name}", clock)
        all_forms = self._forms if state_form is None else (*self._forms, state_form)
        self._longest = OVERHEAD_BYTES + max(form.most_bytes for form in all_forms)
        self._most_states = max(1, MOST_WRITTEN_BYTES // state_form.num_bytes) if state_form else 0
        self._states_waiting = 0
        """Snapshots that wait to be written."""
        self._writer = Worker("kv-tier-write", max(4, MOST_WRITTEN_BYTES // max(form.num_bytes for form in forms)))
        self._reader = Worker("kv-tier-read", MOST_READS)
        self._answered = threading.Condition()
        self._answers: deque[Callable[[], None]] = deque()
        self._to_compare: set[bytes] = set()

    @property
    def name(self) -> str:
        return self._store.name

    def seconds(self, num_bytes: float, calls: int) -> float:
        """Return the seconds of the given calls, which read the given bytes, as lately measured; 0 if nothing was."""
        rate = self.rate.bytes_per_second
        return calls * (self.call_seconds.value or 0.0) + (num_bytes / rate if rate else 0.0)

    def keep(self, key: bytes, block: HostBlock) -> None:
        """Write a block, unless the store has it; drop it if too many wait, or the store failed a short time ago."""
        state = int(is_state_key(key))
        fits = self._writing.usable and (not state or self._states_waiting < self._most_states)
        with self._counting:  # the writer may end at once
            self._states_waiting += state
        if not fits or not self._writer.submit(partial(self._write, key, block)):
            self._drop(state)

    def compare(self, key: bytes) -> None:
        """Compare this block with the store's once it is computed again and kept."""
        if len(self._to_compare) == MOST_TO_COMPARE:
            self._to_compare.pop()
        self._to_compare.add(key)

    def look_up(self, keys: Sequence[bytes], then: Callable[[int], None], states: Sequence[bytes] = ()) -> bool:
        """Ask how many of the first keys the store has; ``poll`` tells it to ``then``. Return whether it is asked.

        With ``states``, ask for the number of the last snapshot that it has, counted from 1. Their last ones are at the
        ends of the blocks of ``keys``, which it must have up to there.
        """
        return self._reading.usable and self._reader.submit(partial(self._look_up, keys, states, then))

    def read(self, keys: Sequence[bytes], then: Callable[[list[HostBlock]], None], *, afresh: bool = False) -> bool:
        """Read the blocks of the keys, up to the first that is missing or damaged; ``poll`` gives them to ``then``.

        Return whether it is asked. ``afresh``: forget the rate of earlier reads.
        """
        return self._reading.usable and self._reader.submit(partial(self._read, keys, then, afresh))

    def poll(self) -> None:
        """Pass on the answers that have come. One that could not be passed on is passed on by the next call."""
        while self._answers:
            self._answers[0]()
            self._answers.popleft()

    def wait(self, seconds: float) -> None:
        """Wait until there is an answer, for ``seconds`` at most."""
        with self._answered:
            if not self._answers:
                self._answered.wait(seconds)

    def close(self, seconds: float) -> bool:
        """Write what waits, for ``seconds`` at most, and end the threads; return whether all was written."""
        self._reader.close(0.0)
        return self._writer.close(seconds)

    def probe(self, seconds: float) -> bool:
        """Write a block of nothing, and read it back for a first rate; return whether that took ``seconds`` at most."""
        done = threading.Event()
        self._writer.submit(partial(self._probe, done))
        return done.wait(seconds)

    def _name(self, key: bytes) -> bytes:
        return blake2b(key, key=self._namespace, digest_size=KEY_BYTES).digest()

    def _answer(self, call: Callable[[], None]) -> None:
        with self._answered:
            self._answers.append(call)
            self._answered.notify_all()

    def _form_of(self, key: bytes) -> BlockFormat:
        return self._state_form if self._state_form is not None and is_state_key(key) else self._forms[kind_of(key)]

    def _look_up(self, keys: Sequence[bytes], states: Sequence[bytes], then: Callable[[int], None]) -> None:
        started, num_found = self._clock(), 0
        try:
            num_found = self._store.count([self._name(key) for key in keys])
            if states:
                reached = len(states) - len(keys) + num_found
                num_found = self._store.last([self._name(key) for key in states[:reached]])
            self._reading.worked()
            self.call_seconds.observe(self._clock() - started)
        except Exception as error:  # any error of a store: blocks are computed
            self._fail(self._reading, error)
        self._answer(partial(then, num_found))

    def _read(self, keys: Sequence[bytes], then: Callable[[list[HostBlock]], None], afresh: bool) -> None:
        blocks: list[HostBlock] = []
        try:
            names, started, num_bytes = [self._name(key) for key in keys], self._clock(), 0
            for key, name, value in zip(keys, names, self._store.get(names, self._longest), strict=True):
                block = None if value is None else self._open(key, name, value)
                if value is None or block is None:
                    break
                blocks.append(block)
                num_bytes += len(value)
            if afresh:
                self.rate = LinkRate()
            if blocks:
                self._observe(num_bytes, self._clock() - started)
            self.stats.read_blocks += len(blocks)
            self.stats.read_bytes += num_bytes
            self.stats.read_seconds += self._clock() - started
            self._reading.worked()
        except Exception as error:
            self._fail(self._reading, error)
        self._answer(partial(then, blocks))

    def _observe(self, num_bytes: int, seconds: float) -> None:
        """Learn from the seconds of a call that read the given bytes."""
        own = self.call_seconds.value or 0.0
        self.rate.observe(num_bytes, max(seconds - own, LEAST_SHARE * seconds))

    def _open(self, key: bytes, name: bytes, value: bytes) -> HostBlock | None:
        """Return the block of a value; None if that is damaged, which removes it."""
        try:
            return self._form_of(key).block(content_of(name, value, self._secret))
        except DamagedError as error:
            self.stats.damaged_blocks += 1
            self._remove(name, f"is damaged: {error}")
            return None

    def _remove(self, name: bytes, reason: str) -> None:
        """Remove a wrong value, and log why. A store that does not let us, as a read-only one, can be used still."""
        try:
            self._store.remove(name)
            then = "it is removed"
        except Exception as error:  # any error of a store
            then = f"it could not be removed ({type(error).__name__}: {one_line(str(error))})"
        logger.warning("a block in the KV tier %s %s; %s", self.name, reason, then)

    def _drop(self, state: int) -> None:
        with self._counting:
            self.stats.dropped_writes += 1
            self._states_waiting -= state

    def _write(self, key: bytes, block: HostBlock) -> None:
        state = int(is_state_key(key))
        if not self._writing.usable:  # it has failed since the block was queued
            self._drop(state)
            return
        with self._counting:
            self._states_waiting -= state
        name = self._name(key)
        try:
            parts = self._form_of(key).parts(block)
            if key in self._to_compare:
                self._to_compare.discard(key)
                self._compare(name, parts)
            if self._store.put(name, frame(name, parts, self._secret)):
                self.stats.written_blocks += 1
                self.stats.written_bytes += sum(memoryview(part).nbytes for part in parts)
            self._writing.worked()
        except Exception as error:
            self._fail(self._writing, error)

    def _compare(self, name: bytes, parts: Sequence[Buffer]) -> None:
        """Compare a block that was computed again with the store's, and remove that if it differs."""
        (value,) = self._store.get([name], self._longest)
        if value is None:
            return
        self.stats.compared_blocks += 1
        if value != b"".join(frame(name, parts, self._secret)):
            self.stats.differing_blocks += 1
            self._remove(name, "differs from the same block computed again")

    def _probe(self, done: threading.Event) -> None:
        name = os.urandom(KEY_BYTES)
        try:
            self._store.put(name, frame(name, [bytes(self._forms[0].num_bytes)], self._secret))
            started = self._clock()
            self._store.count([name])
            self.call_seconds.observe(self._clock() - started)
            started = self._clock()
            (value,) = self._store.get([name], self._longest)
            if value is not None:
                content_of(name, value, self._secret)
                self._observe(len(value), self._clock() - started)
            self._store.remove(name)
        except Exception as error:
            self._fail(self._writing, error)
        done.set()

    def _fail(self, health: Health, error: Exception) -> None:
        self.stats.errors += 1
        health.failed(error)
