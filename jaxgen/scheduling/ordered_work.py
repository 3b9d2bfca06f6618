"""Sum the work of sequences that comes before a place in the order of service. Host only, no jax, no clock."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add, sub
from typing import NamedTuple

from jaxgen.core.service_class import ServiceClass

Place = tuple[float, int]
"""As ``Standing.due_key``."""

BUCKET = 64
"""Places of a bucket after it was split in two."""


class Work(NamedTuple):
    """Sums of the work left to compute of sequences."""

    tokens: int = 0
    """Tokens to compute before they decode."""
    positions: int = 0
    """As of StepSample, of these tokens."""
    sequences: int = 0
    waiting: int = 0
    """Sequences without a row."""
    blocks: int = 0
    """Blocks that the waiting sequences will take, except blocks that others own already."""
    max_tokens: int = 0
    """``max_tokens`` of the requests, summed."""
    will_decode: int = 0
    """Waiting sequences that will decode."""
    contexts: int = 0
    """Tokens of these."""


NO_WORK = Work()


def total(works: list[Work]) -> Work:
    """Return the sum of works."""
    return Work(*map(sum, zip(*works, strict=True))) if works else NO_WORK


@dataclass(slots=True)
class _Bucket:
    places: list[Place]
    works: list[Work]
    promises: list[ServiceClass | None]
    total: Work


class OrderedWork:
    """Work by place, in buckets of neighbours, each with its sum: a change or a sum costs the square root of the number
    of places, at most.

    With each place goes the class whose promise of a first token counts on it, or None.
    """

    def __init__(self) -> None:
        self.total = NO_WORK
        self._buckets: list[_Bucket] = []

    def add(self, place: Place, work: Work, promise: ServiceClass | None) -> None:
        """Add work at a new place."""
        self.total = Work(*map(add, self.total, work))
        if not self._buckets:
            self._buckets.append(_Bucket([place], [work], [promise], work))
            return
        at = self._bucket_of(place)
        bucket = self._buckets[at]
        index = bisect_left(bucket.places, place)
        bucket.places.insert(index, place)
        bucket.works.insert(index, work)
        bucket.promises.insert(index, promise)
        bucket.total = Work(*map(add, bucket.total, work))
        if len(bucket.places) >= 2 * BUCKET:
            parts = slice(None, BUCKET), slice(BUCKET, None)
            self._buckets[at : at + 1] = [
                _Bucket(bucket.places[part], bucket.works[part], bucket.promises[part], total(bucket.works[part]))
                for part in parts
            ]

    def remove(self, place: Place) -> None:
        """Remove the work at a place."""
        at = self._bucket_of(place)
        bucket = self._buckets[at]
        index = bisect_left(bucket.places, place)
        work = bucket.works.pop(index)
        del bucket.places[index], bucket.promises[index]
        self.total = Work(*map(sub, self.total, work))
        bucket.total = Work(*map(sub, bucket.total, work))
        if not bucket.places:
            del self._buckets[at]

    def before(self, place: Place) -> Work:
        """Return the sum of the work at earlier places."""
        if not self._buckets or place > self._buckets[-1].places[-1]:
            return self.total  # mostly: who comes last is last
        at = self._bucket_of(place)
        bucket = self._buckets[at]
        return total([b.total for b in self._buckets[:at]] + bucket.works[: bisect_left(bucket.places, place)])

    def promises_behind(self, place: Place, most: int) -> Iterator[tuple[Place, int, ServiceClass]]:
        """Yield places with a promise behind ``place``, each with the tokens from there to it.

        Of the next ``most`` places all, and of each bucket the last: what makes one late makes its neighbours late.
        """
        if not self._buckets:
            return
        at = self._bucket_of(place)
        first = bisect_left(self._buckets[at].places, place)
        tokens = -sum([work.tokens for work in self._buckets[at].works[:first]])
        for bucket in self._buckets[at:]:
            near = range(first, min(len(bucket.places), first + most))
            last = len(bucket.places) - 1
            for index in near if last < near.stop else (*near, last):
                promise = bucket.promises[index]
                if promise is not None:
                    yield bucket.places[index], tokens + sum([work.tokens for work in bucket.works[:index]]), promise
            tokens += bucket.total.tokens
            most -= len(near)
            first = 0

    def _bucket_of(self, place: Place) -> int:
        """Return the index of the bucket in which a place is, or belongs."""
        return max(0, bisect_right(self._buckets, place, key=_first) - 1)


def _first(bucket: _Bucket) -> Place:
    return bucket.places[0]
