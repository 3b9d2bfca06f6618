"""Keep answers that ended, and find in them what followed some tokens. Host only, no jax.

The places of all answers are leaves of a tree, in which one descends by the last token, the one before it, and so on. A
leaf with many places becomes a branch. Each salt has a tree of its own, so no answer is found under another salt.
"""

from collections import abc
from typing import NamedTuple

MOST_TOKENS = 1 << 18
"""Tokens kept at most, about 50 MiB."""
MOST_PLACES = 32
"""Places of a leaf at most, and places that ``find`` returns at most."""
BEGINNING = -1
"""Stands for the token before the first."""


class Place(NamedTuple):
    """A place in a text: tokens up to ``at`` precede it."""

    text: tuple[int, ...]
    at: int

    def before(self, count: int) -> int:
        """Return the token that ``count`` others separate from the place."""
        return self.text[self.at - 1 - count] if count < self.at else BEGINNING

    def common(self, tail: abc.Sequence[int]) -> int:
        """Return how many of the last tokens of ``tail`` precede the place."""
        count = 0
        while count < len(tail) and self.before(count) == tail[-1 - count]:
            count += 1
        return count

    def following(self, count: int) -> tuple[int, ...]:
        """Return the tokens from the place on, at most ``count``."""
        return self.text[self.at : self.at + count]


class _Node:
    """Places that the same tokens precede: a leaf has ``places``, others have ``branches`` by the token before."""

    __slots__ = ("branches", "places")

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.branches: dict[int, _Node] | None = None

    def add(self, place: Place, depth: int) -> None:
        """Add a place below this node, at most ``depth`` levels below."""
        node, level = self, 0
        while node.branches is not None:
            node, level = node.branches.setdefault(place.before(level), _Node()), level + 1
        node.places.append(place)
        if len(node.places) <= MOST_PLACES:
            return
        if level >= depth or level > place.at:
            del node.places[0]
            return
        node.branches = {}
        for one in node.places:
            node.branches.setdefault(one.before(level), _Node()).places.append(one)
        node.places = []

    def find(self, tail: abc.Sequence[int]) -> tuple[list[Place], int]:
        """Return places that most of the last tokens of ``tail`` precede, the latest of a leaf first, and how many."""
        node, level = self, 0
        while node.branches is not None and level < len(tail) and tail[-1 - level] in node.branches:
            node, level = node.branches[tail[-1 - level]], level + 1
        places = node.some()
        counts = [place.common(tail) for place in places]
        most = max(counts, default=0)
        return [place for place, count in zip(places, counts, strict=True) if 0 < count == most], most

    def some(self) -> list[Place]:
        """Return places of the leaves below this node, the latest of a leaf first."""
        found: list[Place] = []
        nodes = [self]
        while nodes and len(found) < MOST_PLACES:
            node = nodes.pop()
            found += reversed(node.places)
            nodes += (node.branches or {}).values()
        return found[:MOST_PLACES]


class _Generation:
    """Answers by salt, and their number."""

    def __init__(self) -> None:
        self.trees: dict[str | None, _Node] = {}
        self.num_answers = 0
        self.num_tokens = 0


class Answers:
    """The last answers, by salt. At least half as many as may be are kept: those before the last half go together."""

    def __init__(self, most: int, depth: int) -> None:
        """``most``: answers kept. ``depth``: tokens looked up."""
        self._most = most
        self._depth = depth
        self._new, self._old = _Generation(), _Generation()

    def __len__(self) -> int:
        return self._new.num_answers + self._old.num_answers

    def add(self, salt: str | None, answer: abc.Sequence[int]) -> None:
        """Keep an answer: of a very long one, its last tokens."""
        text = tuple(answer[-MOST_TOKENS // 2 :])
        if len(text) < 2 or not self._most:
            return
        new = self._new
        tree = new.trees.setdefault(salt, _Node())
        for at in range(1, len(text)):
            tree.add(Place(text, at), self._depth)
        new.num_answers += 1
        new.num_tokens += len(text)
        if 2 * new.num_answers >= self._most or 2 * new.num_tokens >= MOST_TOKENS:
            self._new, self._old = _Generation(), new

    def find(self, salt: str | None, tail: abc.Sequence[int]) -> tuple[list[Place], int]:
        """Return places that most of the last tokens of ``tail`` precede, and how many; ([], 0): none is preceded by
        its last token."""
        found, most = list[Place](), 0
        for generation in (self._new, self._old):
            tree = generation.trees.get(salt)
            places, count = ([], 0) if tree is None else tree.find(tail[-self._depth :])
            if count > most:
                found, most = places, count
            elif count == most:
                found = found + places
        return found, most
