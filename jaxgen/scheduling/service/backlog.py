"""Keep the sums of the work left to compute of all sequences, by level and tenant. Host only, no jax, no clock."""

from collections import Counter
from math import inf
from typing import NamedTuple

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.cache.prefix_cache import ComingPrefixes
from jaxgen.core.request import Request
from jaxgen.core.sequence import Sequence, SequenceStatus
from jaxgen.core.service_class import ServiceClass
from jaxgen.core.standing import Level
from jaxgen.scheduling.ordered_work import NO_WORK, OrderedWork, Place, Work, total
from jaxgen.scheduling.service.fair_share import FairShare

OrderKey = tuple[int, float, int]

EVERYONE: OrderKey = (Level.BACKGROUND, -inf, 0)
"""Comes after everything that is online."""

MOST_ASKED = 32
"""Sequences behind a newcomer that are asked each whether it would make them late."""


class _Recorded(NamedTuple):
    level: Level
    tenant: str
    place: Place
    work: Work | None  # None: it decodes
    promises: ServiceClass | None  # its class, if that has a target between tokens
    given_up: str | None  # the name of its class, if it waits without the targets of that


class Backlog:
    """Sums over the sequences that run or wait, and the prefixes that they will bring.

    A sequence *wants* while it waits, or runs and does not decode. Then it is in the sums. Every change of a sequence
    marks it. ``update`` runs before a step and any question, and records the changed sequences again. So a question
    costs time for the changed sequences, and for the square root of the number of waiting ones.
    """

    def __init__(self, kv_cache: KVCacheManager) -> None:
        self.promises: Counter[ServiceClass] = Counter()
        """Classes with targets between tokens, by sequences that run or wait."""
        self._kv_cache = kv_cache
        self._coming = ComingPrefixes(kv_cache.prefixes)
        self._lines: dict[Level, dict[str, OrderedWork]] = {level: {} for level in Level}
        self._recorded: dict[Sequence, _Recorded] = {}
        self._changed: dict[Sequence, None] = {}
        self._given_up: Counter[tuple[str, str]] = Counter()

    def mark_changed(self, sequence: Sequence) -> None:
        """Note that a sequence has changed."""
        self._changed[sequence] = None

    def update(self) -> None:
        """Record what the changed sequences are now."""
        changed, self._changed = self._changed, {}
        for sequence in changed:  # places may have been exchanged: all old ones go first
            self._forget(sequence)
        for sequence in changed:
            wants = False
            if sequence.status in (SequenceStatus.WAITING, SequenceStatus.RUNNING):
                wants = self._record(sequence) and sequence.standing.level is not Level.BACKGROUND
            if wants is not (sequence in self._coming):
                (self._coming.join if wants else self._coming.leave)(sequence)

    def wants(self, sequence: Sequence) -> bool:
        """Whether a sequence wanted when it was recorded, or is new."""
        old = self._recorded.get(sequence)
        return old is None or old.work is not None

    def tenants(self, *, background: bool) -> list[str]:
        """Return the tenants of which a sequence wants, online or in the background."""
        levels = (Level.BACKGROUND,) if background else (Level.WITH_TARGETS, Level.BEST_EFFORT)
        return list(dict.fromkeys([tenant for level in levels for tenant in self._lines[level]]))

    def total(self, level: Level) -> Work:
        """Return the work of a level."""
        return total([line.total for line in self._lines[level].values()])

    def has_given_up(self, tenant: str, name: str) -> bool:
        """Whether a sequence of this tenant and class waits without the targets of its class."""
        return self._given_up[tenant, name] > 0

    def find_prefix(self, sequence: Sequence, order_key: OrderKey) -> None:
        """Set what a newcomer will find in the prefix cache: what is there, or what those before it will compute."""
        prefixes, size = self._kv_cache.prefixes, self._kv_cache.block_size
        hits = prefixes.look_up(sequence)
        coming = self._coming.num_common(sequence, order_key)
        _, beginning = prefixes.look_up_beginning(sequence, len(hits))
        sequence.standing.num_expected = max(len(hits) * size + beginning, coming * size)
        owned = sum([self._kv_cache.pool.num_owners(block) > 0 for block in hits])
        sequence.standing.num_expected_shared = max(owned, coming)

    def work_of(self, sequence: Sequence) -> Work:
        """Return what is left to compute of one sequence that wants."""
        tokens, length, max_tokens = sequence.num_to_compute, sequence.num_tokens, sequence.params.max_tokens
        positions = tokens * (2 * length - tokens) // 2
        if sequence.row is not None:
            return Work(tokens, positions, 1, max_tokens=max_tokens)
        blocks = self._kv_cache.blocks_for(length) - sequence.standing.num_expected_shared
        decodes = max_tokens > 1
        return Work(tokens, positions, 1, 1, blocks, max_tokens, int(decodes), length if decodes else 0)

    def ahead_of(self, request: Request, own: Work, order_key: OrderKey, fair_share: FairShare) -> Work:
        """Return the online work that is computed before a newcomer's ``own``.

        Its tenant's by the order of service; of each other tenant as much as the fair share allows.
        """
        tenant, wanting = request.tenant, self.tenants(background=False)
        first = self._before(tenant, order_key)
        others = [other for other in wanting if other != tenant]
        if not others:
            return first
        reached = fair_share.served(tenant, wanting) + (first.tokens + own.tokens) / request.tenant_weight
        parts = [first]
        for other in others:
            everything = self._before(other, EVERYONE)
            before = self._before(other, order_key).tokens
            tokens = fair_share.tokens_ahead(reached, other, before, everything.tokens)
            share = tokens / max(1, everything.tokens)
            parts.append(Work(*[round(part * share) for part in everything]))
        return total(parts)

    def first_delayed(
        self, tenant: str, order_key: OrderKey, begin: float, each: float, seconds: float
    ) -> ServiceClass | None:
        """Return the class of a sequence that a newcomer of the same tenant would make late; None if there is none.

        That sequence is behind the newcomer. Its first token would be in time without a delay of ``seconds``, and late
        with it. The newcomer begins at ``begin``, and a token takes ``each`` seconds. Fair sharing protects other
        tenants.
        """
        line = self._lines[Level.WITH_TARGETS].get(tenant)
        if order_key[0] == Level.WITH_TARGETS and line is not None:
            for (due, _), tokens, promise in line.promises_behind(order_key[1:], MOST_ASKED):
                if begin + each * tokens <= due < begin + each * tokens + seconds:
                    return promise
        return None

    def _before(self, tenant: str, order_key: OrderKey) -> Work:
        """Return a tenant's work before a place in the order of service."""
        level = order_key[0]
        lines = [(other, self._lines[other].get(tenant)) for other in Level if other <= level]
        parts = [
            line.total if other < level else line.before(order_key[1:]) for other, line in lines if line is not None
        ]
        return total(parts)

    def _record(self, sequence: Sequence) -> bool:
        """Return whether it wants."""
        standing, tenant = sequence.standing, sequence.request.tenant
        waits = sequence.row is None
        work = self.work_of(sequence) if waits or not sequence.is_decode else None
        service = standing.service
        promises = None if service.inter_token_seconds is None else service
        given_up = service.name if waits and service is not sequence.request.service else None
        self._recorded[sequence] = _Recorded(standing.level, tenant, standing.due_key, work, promises, given_up)
        if promises is not None:
            self.promises[promises] += 1
        if given_up is not None:
            self._given_up[tenant, given_up] += 1
        if work is not None:
            counts_on = service.first_token_target(1) is not None and not service.serve_late
            line = self._lines[standing.level].setdefault(tenant, OrderedWork())
            line.add(standing.due_key, work, service if counts_on else None)
        return work is not None

    def _forget(self, sequence: Sequence) -> None:
        old = self._recorded.pop(sequence, None)
        if old is None:
            return
        if old.promises is not None:
            _subtract(self.promises, old.promises)
        if old.given_up is not None:
            _subtract(self._given_up, (old.tenant, old.given_up))
        if old.work is not None:
            lines = self._lines[old.level]
            lines[old.tenant].remove(old.place)
            if lines[old.tenant].total == NO_WORK:
                del lines[old.tenant]


def _subtract[T](counter: Counter[T], key: T) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
