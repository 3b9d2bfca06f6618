"""A drafter that knows the answers, and is as often right as a test or a measurement wants."""

from dataclasses import dataclass, field

from jaxgen.core.sequence import Sequence
from jaxgen.scheduling.drafts import Draft


@dataclass
class Replay:
    """Drafts from answers by request id; ``right``: which places of an answer are drafted as they are."""

    answers: dict[str, list[int]]
    right: tuple[bool, ...] = (True,)
    told: list[tuple[int, int]] = field(default_factory=list)
    """Drafted and accepted tokens, as they were told."""

    def draft(self, sequence: Sequence, most: int) -> Draft:
        first = sequence.num_generated
        answer = self.answers[sequence.request_id][first : first + most]
        guesses = [token ^ (not self.right[place % len(self.right)]) for place, token in enumerate(answer, first)]
        return Draft(tuple(guesses), 1.0)

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self.told.append((drafted, accepted))

    def ended(self, sequence: Sequence) -> None:
        """Nothing is kept of it."""
