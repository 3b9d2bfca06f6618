"""The scheduler's plan of a step, and the step's outcome for each sequence. Host only, no jax."""

from dataclasses import dataclass, field
from functools import cached_property

from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Chunk, Restore, Sequence

MOST_DESCRIBED = 16
"""Most chunks that the description of a plan names."""

MOST_OF_AN_ID = 80
"""Most characters of a request's id in the description of a plan."""


@dataclass(frozen=True, slots=True)
class Save:
    """A block, or a snapshot, to copy to the host before the step of the same plan runs.

    ``block``: its id, or the snapshot's place. ``key``: its key in host memory. ``kind``: the number of the kind of
    cache that the block is of.
    """

    block: int
    key: bytes
    has_inputs: bool = True
    """False: the block was restored without layer inputs, so the device's memory for them does not hold its own."""
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A block whose content another block gets, in the plan's order of copies, before the step of the same plan."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StateCopy:
    """A copy of a sequence's state between its row and a snapshot."""

    row: int
    snapshot: int


@dataclass(frozen=True)
class StepPlan:
    """The chunks that one step computes: those of length 1 first, then longer ones; at most one of each sequence.

    ``admitted`` are the sequences that begin to run with it. Their rows are loaded to the device before the step, with
    a block table for all their tokens, and so are those of ``relocated``. From then on the device's table grows in one
    way only: a chunk in which its last block begins brings that block with it. Any others that begin in it were loaded.
    In a kind of cache with a window a chunk brings all blocks that begin in it. The table that is loaded ends with it.
    """

    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...] = ()
    relocated: tuple[Sequence, ...] = ()
    """Running sequences that got other blocks for some of their tokens."""
    saves: tuple[Save, ...] = ()
    """Blocks to copy to the host before ``copies`` and the step."""
    state_saves: tuple[Save, ...] = ()
    """Snapshots to copy to the host before ``state_loads`` and the step."""
    copies: tuple[Copy, ...] = ()
    state_loads: tuple[StateCopy, ...] = ()
    """Snapshots that rows get before the step."""
    snapshots: tuple[StateCopy, ...] = ()
    """Snapshots to take of rows after the step."""
    restores: tuple[Restore, ...] = ()
    """Restores of admitted sequences, to begin now."""
    idle: tuple[Sequence, ...] = field(default=(), compare=False)
    """Running sequences of which this step computes no token."""
    preempted: tuple[Sequence, ...] = field(default=(), compare=False)
    """Sequences that lost row and blocks when the plan was made."""

    @cached_property
    def num_tokens(self) -> int:
        return sum([chunk.length for chunk in self.chunks])

    @cached_property
    def num_drafts(self) -> int:
        return sum([len(chunk.drafts) for chunk in self.chunks])

    @property
    def loaded(self) -> tuple[Sequence, ...]:
        """The sequences whose rows are loaded before the step."""
        return self.relocated + self.admitted

    @property
    def decodes_only(self) -> bool:
        """Whether no chunk is longer than one token and its drafts."""
        return self.num_tokens - self.num_drafts == len(self.chunks)

    @cached_property
    def num_positions(self) -> int:
        """Sum, over the tokens of chunks of several, of the number of tokens before each in its sequence."""
        return sum([chunk.length * (chunk.start + chunk.end - 1) // 2 for chunk in self.chunks if chunk.length > 1])

    @cached_property
    def num_contexts(self) -> int:
        """Sum, over the chunks of one token, of the number of tokens before each in its sequence."""
        return sum([chunk.start for chunk in self.chunks if chunk.length == 1])

    @property
    def constrained(self) -> list[Sequence]:
        """Sequences whose allowed tokens must be sent to the device.

        Tokens that change are sent with each sample, others once at the admission.
        """
        sampling = [chunk.sequence for chunk in self.chunks if chunk.samples and chunk.sequence.constraint is not None]
        changing = [one for one in sampling if one.constraint is not None and one.constraint.changes]
        return changing + [one for one in self.admitted if one.constraint is not None and not one.constraint.changes]

    @cached_property
    def num_samples(self) -> int:
        return sum([chunk.num_samples for chunk in self.chunks])

    def describe(self) -> str:
        """Describe the plan for logs, in bounded length: requests and their token ranges, but no tokens."""
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
    """The outcome of a step for a sequence: a token, its end, or both.

    ``index``: of the token among the plan's samples. That of a forced token is of the sampled one before it.
    """

    sequence: Sequence
    index: int
    token: int | None
    finish_reason: FinishReason | None
