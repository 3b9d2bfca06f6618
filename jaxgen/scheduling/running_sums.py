"""Sum what running sequences hold, and say when they give it back. Host only, no jax, no clock."""

from collections import abc
from functools import cached_property

from jaxgen.core.sequence import Sequence


class RunningSums:
    """Sums over running sequences, valid until one of them changes."""

    def __init__(
        self, sequences: abc.Sequence[Sequence], decoding: abc.Sequence[Sequence], answer_ratio: float
    ) -> None:
        """``decoding``: the sequences whose prompt is computed. ``answer_ratio``: the part of ``max_tokens`` that
        answers are expected to reach."""
        self._sequences = sequences
        self._answer_ratio = answer_ratio
        self.count = len(sequences)
        self.decoding = len(decoding)
        self.decoded = sum([s.num_computed for s in decoding])
        will_decode = [s for s in sequences if s.max_length > s.num_prompt + 1]  # with more than one token to come
        self.will_decode = len(will_decode)
        self.contexts = sum([len(s.tokens) for s in will_decode])
        self.blocks = sum([s.blocks.num_held for s in sequences])

    @cached_property
    def _ends(self) -> list[tuple[float, int]]:
        """Expected steps to the end of each, in order, and the blocks that it gives back."""
        return sorted(
            (max(1.0, self._answer_ratio * (s.max_length - s.num_prompt) - s.num_generated), s.blocks.num_held)
            for s in self._sequences
        )

    def steps_to_room(self, rows: int, blocks: int) -> float:
        """Return the steps until enough of them have ended to free ``rows`` and ``blocks``."""
        steps = 0.0
        for left, held in self._ends if rows > 0 or blocks > 0 else ():
            steps, rows, blocks = left, rows - 1, blocks - held
            if rows <= 0 and blocks <= 0:
                break
        return steps
