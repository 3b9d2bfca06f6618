"""Estimate how likely drafts are to be right, by what was right before. Host only, no jax."""

from dataclasses import dataclass

UNKNOWN = 0.5
"""The chance of drafts of which nothing is known."""
PRIOR = 2.0
"""Weight, in drafts, of what is expected before any was checked."""
DECAY = 0.9
"""Weight of what was seen, after each check of a request's drafts."""
FADING = 0.98
"""The same, after each time that drafts were found: where none is tried, it is tried again after a while."""


@dataclass(slots=True)
class Record:
    """Drafts that were checked, and how many of them were right; older ones count less."""

    checked: float = 0.0
    right: float = 0.0

    def chance(self, prior: float) -> float:
        """Return the expected share of drafts that are right."""
        return (self.right + PRIOR * prior) / (self.checked + PRIOR)

    def fade(self, weight: float) -> None:
        """Let what was seen weigh less."""
        self.checked *= weight
        self.right *= weight

    def note(self, drafted: int, accepted: int) -> None:
        """Count drafts: those behind the first wrong one say nothing."""
        self.fade(DECAY)
        self.checked += min(drafted, accepted + 1)
        self.right += accepted
