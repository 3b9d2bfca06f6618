"""Keep running and waiting sequences in the order of service. Host only, no jax, no clock."""

from bisect import bisect_left, insort
from typing import Any

from jaxgen.core.sequence import Level, Sequence


class RequestQueues:
    """Running and waiting sequences in one order: by level, then by place; background sequences come last."""

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.waiting_tokens = 0
        """Prompt tokens of the waiting ones that are not of the background."""
        self._levels = [0] * len(Level)

    @property
    def is_mixed(self) -> bool:
        """Whether sequences of different levels run or wait."""
        return self._levels.count(0) < len(Level) - 1

    def has(self, level: Level) -> bool:
        """Whether a sequence of this level runs or waits."""
        return self._levels[level] > 0

    def any_waits(self, *, background: bool) -> bool:
        """Whether ``waiting_of`` is not empty."""
        return bool(self.waiting) and self.waiting[0].request.background is background

    def waiting_of(self, *, background: bool) -> list[Sequence]:
        """Waiting sequences, online or background; no background ones while online ones wait."""
        first = bisect_left(self.waiting, (Level.BACKGROUND,), key=order_key_of)
        if background:
            return self.waiting[:] if first == 0 else []
        return self.waiting[:first]

    def wanting(self, *, background: bool) -> list[Sequence]:
        """Sequences with prompt tokens left to compute, online or background: running ones, then waiting ones."""
        begun = [s for s in self.running if s.num_uncomputed > 1 and s.request.background is background]
        return begun + self.waiting_of(background=background)

    def join(self, sequence: Sequence) -> None:
        """Add a new sequence to the waiting ones."""
        self._wait(sequence)
        self._levels[sequence.level] += 1

    def begin(self, sequence: Sequence) -> None:
        """Move a waiting sequence to the running ones."""
        self._remove(sequence, self.waiting)
        insort(self.running, sequence, key=order_key_of)

    def put_back(self, sequence: Sequence) -> None:
        """Move a running sequence back to the waiting ones, at its place in the order."""
        self._remove(sequence, self.running)
        self._wait(sequence)

    def leave(self, sequence: Sequence, line: list[Sequence]) -> None:
        """Remove a sequence that ends from ``line``, the running or the waiting ones."""
        self._remove(sequence, line)
        self._levels[sequence.level] -= 1

    def _wait(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=order_key_of)
        self.waiting_tokens += _foreground_tokens(sequence)

    def _remove(self, sequence: Sequence, line: list[Sequence]) -> None:
        del line[bisect_left(line, sequence.order_key, key=order_key_of)]
        if line is self.waiting:
            self.waiting_tokens -= _foreground_tokens(sequence)


def order_key_of(sequence: Sequence) -> Any:
    """The key of the order of service."""
    return sequence.order_key


def _foreground_tokens(sequence: Sequence) -> int:
    return 0 if sequence.request.background else sequence.num_prompt
