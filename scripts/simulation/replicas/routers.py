"""What decides which replica serves a request. What it knows of replicas is never old, and asking takes no time."""

import random
from collections.abc import Sequence as Several
from hashlib import blake2b
from itertools import count
from math import ceil, inf
from operator import attrgetter
from struct import pack
from typing import Literal, Protocol

from jaxgen.core.sequence import Sequence
from scripts.simulation.replicas.replica import Replica

PREFIX_TOKENS = 64
"""Prompts that share so many first tokens are taken to share a prefix: a block of FastGen's."""


class Router(Protocol):
    def choose(self, sequence: Sequence, replicas: Several[Replica], now: float) -> Replica:
        """Return where a sequence is sent now; it is not changed."""
        ...


class RoundRobin:
    """One after the other, whatever they have to do: what FastGen's balancer does."""

    def __init__(self) -> None:
        self._next = count()

    def choose(self, sequence: Sequence, replicas: Several[Replica], now: float) -> Replica:
        del sequence, now
        return replicas[next(self._next) % len(replicas)]


class LeastWork:
    """The replica with the fewest requests that are not answered, or the fewest tokens of prompts whose first token has
    not come, and of those the fewest requests; of equal ones the first."""

    def __init__(self, what: Literal["requests", "tokens"]) -> None:
        self._work = attrgetter("unanswered") if what == "requests" else attrgetter("unbegun_tokens", "unanswered")

    def choose(self, sequence: Sequence, replicas: Several[Replica], now: float) -> Replica:
        del sequence, now
        return min(replicas, key=self._work)


class PrefixAffinity:
    """The replica to which a prefix belongs, or the next in its order that is not too busy.

    Each prefix has an order of replicas of its own (rendezvous hashing). A replica takes no request that would give it
    more than ``bound`` times the mean of unanswered requests: consistent hashing with bounded loads (Mirrokni,
    Thorup, Zadimoghaddam, SODA 2018). inf: no bound.
    """

    def __init__(self, bound: float = 1.25) -> None:
        self._bound = bound

    def choose(self, sequence: Sequence, replicas: Several[Replica], now: float) -> Replica:
        del now
        order = by_prefix(sequence, len(replicas))
        if self._bound == inf:
            return replicas[order[0]]
        most = ceil(self._bound * (1 + sum(one.unanswered for one in replicas)) / len(replicas))
        return next(replicas[place] for place in order if replicas[place].unanswered < most)


class Quote:
    """The one that promises the earliest first token, of ``asked`` replicas that are drawn at random, or of all.

    ``home``: one of them is the replica to which the prefix belongs.
    """

    def __init__(self, seed: int, asked: int | None = 2, *, home: bool = False) -> None:
        """``asked`` None: all."""
        self.quotes: dict[str, float] = {}
        """Seconds to the first token that the chosen replica promised, by request id."""
        self._random = random.Random(seed)
        self._asked = asked
        self._home = home

    def choose(self, sequence: Sequence, replicas: Several[Replica], now: float) -> Replica:
        number = len(replicas) if self._asked is None else min(self._asked, len(replicas))
        asked = self._random.sample(range(len(replicas)), number)
        if self._home and (home := by_prefix(sequence, len(replicas))[0]) not in asked:
            asked[0] = home
        quotes = {place: replicas[place].first_token(sequence, now) for place in asked}
        best = min(asked, key=quotes.__getitem__)
        self.quotes[sequence.request_id] = quotes[best]
        return replicas[best]


def by_prefix(sequence: Sequence, replicas: int) -> list[int]:
    """Return the order of replicas, 0 to ``replicas`` - 1, that the first tokens of a sequence have."""
    tokens = sequence.tokens[:PREFIX_TOKENS]
    prefix = blake2b(pack(f"<{len(tokens)}i", *tokens), digest_size=16).digest()
    return sorted(range(replicas), key=lambda place: blake2b(prefix + pack("<i", place), digest_size=8).digest())
