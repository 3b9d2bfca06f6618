"""Add drafts to a step of decodes: guesses of the next tokens, which the step checks. Host only, no jax, no clock.

The step samples a token at the place of each draft, and one more after the last. Noise depends on seed and position
alone, so the samples are those of one step for each token, as long as the drafts before them are right. A draft is
right if it is what was sampled at its place.

Drafts come last, into rows of a step that would be padding. A step with prompts has none, so nobody waits for drafts.
They take no block: a draft must fit into the block of its decode. Where a row costs time, a draft must be worth it: the
step with it gives more tokens a second than without it.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol, runtime_checkable

from jaxgen.core.config import SchedulerConfig
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.stats import SpeculationStats
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.step_time import StepBudget


class Draft(NamedTuple):
    """Guesses of a sequence's next tokens. ``chance``: the probability that one is right if those before it are."""

    tokens: tuple[int, ...]
    chance: float


@runtime_checkable
class Drafter(Protocol):
    """Guesses what sequences go on with."""

    def draft(self, sequence: Sequence, most: int) -> Draft:
        """Return at most ``most`` guesses, of what follows ``sequence.tokens``."""
        ...

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Note how many of the tokens drafted for a sequence were right."""
        ...

    def ended(self, sequence: Sequence) -> None:
        """Note that a sequence has ended, with all its tokens."""
        ...


class DraftPlanner:
    """Shares out the rows that the decodes of a step leave, by what each draft is expected to bring."""

    def __init__(
        self, drafter: Drafter, limits: SchedulerConfig, block_size: int, *, narrow_width: int | None = None
    ) -> None:
        """``narrow_width``: tokens of the narrow program; None: there is none."""
        self.stats = SpeculationStats()
        self._drafter = drafter
        self._limits = limits
        self._block_size = block_size
        self._narrow_width = narrow_width

    def extend(self, chunks: list[Chunk], policy: Fifo) -> list[Chunk]:
        """Return the chunks of a planned step with drafts behind some of them."""
        left = self._room(len(chunks))
        if left <= 0 or any(chunk.length > 1 for chunk in chunks):
            return chunks
        drafts = dict(self._drafts(chunks, left))
        counts = self._shares(chunks, drafts, left, policy) if drafts else {}
        return [
            Chunk(chunk.sequence, chunk.start, 1 + counts[index], drafts[index].tokens[: counts[index]])
            if index in counts
            else chunk
            for index, chunk in enumerate(chunks)
        ]

    def checked(self, chunk: Chunk, accepted: int) -> None:
        """Note how many drafts of a chunk were right."""
        self._drafter.checked(chunk.sequence, len(chunk.drafts), accepted)
        self.stats = self.stats.counted(len(chunk.drafts), accepted)
        standing = chunk.sequence.standing
        standing.num_drafted_steps += 1
        standing.num_accepted += accepted

    def ended(self, sequence: Sequence) -> None:
        """Note that a sequence has ended."""
        self._drafter.ended(sequence)

    def _room(self, decodes: int) -> int:
        """Return how many tokens a step with these decodes has left, of the program that it runs anyway."""
        width = self._narrow_width
        if width is None or decodes > width:
            width = self._limits.token_budget
        return min(width, self._limits.max_num_seqs) - decodes

    def _drafts(self, chunks: list[Chunk], left: int) -> Iterator[tuple[int, Draft]]:
        """Yield the drafts of each chunk that may have some, by its index."""
        with_online = not all(chunk.sequence.request.background for chunk in chunks)
        for index, chunk in enumerate(chunks):
            sequence = chunk.sequence
            constraint = sequence.constraint
            if not chunk.samples or (constraint is not None and constraint.changes):
                continue  # what is allowed after a draft is known only once the constraint has followed it
            if with_online and sequence.request.background:
                continue
            in_block = self._block_size - 1 - chunk.start % self._block_size
            most = min(left, in_block, sequence.max_length - chunk.end - 1)
            draft = self._drafter.draft(sequence, most) if most > 0 else None
            if draft is not None and draft.tokens:
                yield index, draft

    @staticmethod
    def _shares(chunks: list[Chunk], drafts: dict[int, Draft], left: int, policy: Fifo) -> dict[int, int]:
        """Return how many drafts each chunk gets, the likeliest first, as long as each is worth its time."""
        cost, room = policy.decode_cost(len(chunks)), StepBudget(left, left)
        policy.limit_background(room, chunks)
        expected = float(sum([chunk.samples for chunk in chunks]))
        seconds = cost.seconds(len(chunks), contexts=sum([chunk.start for chunk in chunks]))
        counts: dict[int, int] = {}
        queue = [(-draft.chance, 0, index) for index, draft in drafts.items()]
        heapify(queue)
        while queue and left > 0:
            gain, _, index = heappop(queue)
            more = cost.per_token + cost.per_position * chunks[index].start
            if -gain * seconds < more * expected or room.seconds < more:
                break
            counts[index] = counts.get(index, 0) + 1
            left, expected, seconds, room.seconds = left - 1, expected - gain, seconds + more, room.seconds - more
            if counts[index] < len(drafts[index].tokens):
                heappush(queue, (gain * drafts[index].chance, counts[index], index))
        return counts
