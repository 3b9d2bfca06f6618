"""Find where the last tokens of a text were before, and what followed them. Host only, no jax."""

from collections import abc

import numpy as np


class Tokens:
    """A growing row of tokens, which is searched as a whole: some microseconds for a hundred thousand."""

    def __init__(self) -> None:
        self._buffer = np.zeros(1024, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, tokens: abc.Sequence[int]) -> None:
        """Append tokens."""
        end = self._count + len(tokens)
        if end > len(self._buffer):
            self._buffer = np.resize(self._buffer, max(end, 2 * len(self._buffer)))
        self._buffer[self._count : end] = tokens
        self._count = end

    def last(self, count: int) -> np.ndarray:
        """Return the last tokens, at most ``count``."""
        return self._buffer[max(0, self._count - count) : self._count]

    def find(self, tail: np.ndarray, *, before: int) -> tuple[np.ndarray, int]:
        """Return the places that follow most of the last tokens of ``tail``, in order, and how many those are.

        No place is after ``before``; 0: no place follows its last token.
        """
        buffer = self._buffer
        places = np.flatnonzero(buffer[:before] == tail[-1]) + 1
        length = min(len(places), 1)
        while length < len(tail):
            longer = places[(places > length) & (buffer[places - length - 1] == tail[-length - 1])]
            if not len(longer):
                break
            places, length = longer, length + 1
        return places, length

    def following(self, place: int, count: int) -> tuple[int, ...]:
        """Return the tokens from a place on. Where they end they go on as from that place."""
        found = self._buffer[place : min(place + count, self._count)]
        return tuple(np.resize(found, count).tolist()) if len(found) else ()
