"""Estimate how likely drafts are to be right, by what was right before. Host only, no jax.

A request whose drafts are wrong soon gets none, and then one token as a trial, after ever longer pauses.
"""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from jaxgen.core.sequence import Sequence
from jaxgen.scheduling.drafts import Draft

UNKNOWN = 0.5
"""The chance of drafts of which nothing is known."""
PRIOR = 2.0
"""Weight, in drafts, of what is expected before any was checked."""
DECAY = 0.9
"""Weight of what was seen, after each check of a request's drafts."""
FEW_MISSES = 2
"""Checks in a row without a right draft that may be chance."""
PAUSES = 16, 128
"""Drafts found and not checked before the first trial, and before each trial after many that were wrong."""


@dataclass(slots=True)
class Record:
    """Drafts that were checked, and how many of them were right; older ones count less."""

    checked: float = 0.0
    right: float = 0.0
    misses: int = 0
    """Checks without a right draft since the last with one."""

    def chance(self, prior: float) -> float:
        """Return the expected share of drafts that are right."""
        share = (self.right + PRIOR * prior) / (self.checked + PRIOR)
        return min(share, 1.0 / max(1, self.misses - FEW_MISSES + 1))  # the share itself never comes near 0

    def note(self, drafted: int, accepted: int) -> None:
        """Count drafts: those behind the first wrong one say nothing."""
        self.checked = DECAY * self.checked + min(drafted, accepted + 1)
        self.right = DECAY * self.right + accepted
        self.misses = 0 if accepted else self.misses + 1


@dataclass(slots=True)
class _OfRequest:
    """What became of a request's drafts of one kind. ``unchecked``: drafts offered since the last check."""

    record: Record
    unchecked: int = 0
    pause: int = PAUSES[0]

    @property
    def is_trial(self) -> bool:
        return self.unchecked > self.pause

    def note(self, drafted: int, accepted: int) -> None:
        if self.is_trial and accepted:
            self.record = Record()  # what was wrong long ago says nothing
        if accepted:
            self.pause = PAUSES[0]
        elif self.is_trial:
            self.pause = min(2 * self.pause, PAUSES[1])
        self.unchecked = 0
        self.record.note(drafted, accepted)


class Chances:
    """What became of a drafter's drafts: of each request by kind, and of each kind in all requests.

    A kind is what tells good drafts from bad ones, as how many tokens were found.
    """

    def __init__(self) -> None:
        self._requests: WeakKeyDictionary[Sequence, dict[Hashable, _OfRequest]] = WeakKeyDictionary()
        self._offered: WeakKeyDictionary[Sequence, Hashable] = WeakKeyDictionary()
        self._kinds: defaultdict[Hashable, Record] = defaultdict(Record)

    def chance(self, sequence: Sequence, kind: Hashable) -> float:
        """Return the chance of a sequence's drafts of a kind."""
        return self._of(sequence, kind).record.chance(self._kinds[kind].chance(UNKNOWN))

    def offer(self, sequence: Sequence, kind: Hashable, tokens: tuple[int, ...]) -> Draft:
        """Return tokens as a draft of a kind. It is a trial where those before it were not worth their time."""
        own = self._of(sequence, kind)
        own.unchecked += 1
        self._offered[sequence] = kind
        chance = self.chance(sequence, kind)
        return Draft(tokens[:1], max(chance, UNKNOWN)) if own.is_trial else Draft(tokens, chance)

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Note how many tokens of the last draft offered were right."""
        kind = self._offered[sequence]
        self._of(sequence, kind).note(drafted, accepted)
        self._kinds[kind].note(drafted, accepted)

    def _of(self, sequence: Sequence, kind: Hashable) -> _OfRequest:
        kinds = self._requests.setdefault(sequence, {})
        own = kinds.get(kind)
        if own is None:
            own = kinds[kind] = _OfRequest(Record())
        return own
