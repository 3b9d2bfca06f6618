"""What the scheduler decides for a step, and what a step brings its sequences. Host only, no jax."""

from dataclasses import dataclass, field
from functools import cached_property

from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Chunk, Restore, Sequence

MOST_DESCRIBED = 16
"""Chunks that a description of a plan names."""

MOST_OF_AN_ID = 80
"""Characters of a request's id there."""


@dataclass(frozen=True, slots=True)
class Save:
    """A block whose content is to be copied to the host before the step that is planned with it runs."""

    block: int
    key: bytes
    has_inputs: bool = True
    """False: it came without its layer inputs; what the device holds in their place is not its own."""


@dataclass(frozen=True)
class StepPlan:
    """What one step computes: chunks of length 1 first, then the longer ones; at most one chunk of a sequence.

    ``admitted`` are the sequences that begin to run with it. Their rows are loaded to the device before the step, with
    a block table for all their tokens. From then on the device's table grows in one way only: a chunk of length 1 that
    starts a block brings the block with it. Longer chunks lie within the blocks of the admission.
    """

    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...] = ()
    saves: tuple[Save, ...] = ()
    """Blocks to copy to the host before the step."""
    restores: tuple[Restore, ...] = ()
    """Of admitted sequences, to begin now."""
    idle: tuple[Sequence, ...] = field(default=(), compare=False)
    """Sequences that run, and of which this step computes nothing."""

    @cached_property
    def num_tokens(self) -> int:
        return sum([chunk.length for chunk in self.chunks])

    @property
    def decodes_only(self) -> bool:
        """Whether no chunk is longer than a token."""
        return self.num_tokens == len(self.chunks)

    @property
    def num_positions(self) -> int:
        """How many tokens are before each of its tokens, summed."""
        return sum([chunk.length * (chunk.start + chunk.end - 1) // 2 for chunk in self.chunks])

    @property
    def constrained(self) -> list[Sequence]:
        """The sequences that sample under a grammar."""
        return [chunk.sequence for chunk in self.chunks if chunk.samples and chunk.sequence.grammar is not None]

    @cached_property
    def num_samples(self) -> int:
        return sum([chunk.samples for chunk in self.chunks])

    def describe(self) -> str:
        """For logs, of bounded length: which request computes which of its tokens; nothing of what they say."""
        named = [
            f"{chunk.sequence.request_id[:MOST_OF_AN_ID]} "
            f"{'prompt' if chunk.start < chunk.sequence.num_prompt else 'decode'} {chunk.start}+{chunk.length}"
            for chunk in self.chunks[:MOST_DESCRIBED]
        ]
        if len(self.chunks) > MOST_DESCRIBED:
            named.append(f"{len(self.chunks) - MOST_DESCRIBED} more")
        return f"{len(self.chunks)} chunks of {self.num_tokens} tokens ({', '.join(named)})"


@dataclass(slots=True)
class Outcome:
    """What a step brought a sequence: a token, an end, or both. ``index`` is that of its chunk in the plan."""

    sequence: Sequence
    index: int
    token: int | None
    finish_reason: FinishReason | None
