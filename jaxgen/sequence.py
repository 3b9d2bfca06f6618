"""The host's state of one request while it lives, and the piece of it that a step computes. Host only, no jax."""

from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum

from jaxgen.request import FinishReason, Request, SamplingParams


class SequenceStatus(StrEnum):
    """Where a sequence stands; follows from what it holds, see ``Sequence.status``."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way. Made WAITING; from ``Scheduler.add`` on only the scheduler changes it.

    ``eos_token_ids`` are the model's end-of-sequence tokens. ``arrival`` is the order of coming: smaller is older.
    ``seed`` is the seed in effect, the request's own or one drawn for it.
    """

    request: Request
    _: KW_ONLY
    eos_token_ids: frozenset[int]
    arrival: int
    seed: int
    tokens: list[int] = field(init=False, repr=False)
    """The prompt and what was generated; it only grows."""
    num_computed: int = field(init=False, default=0)
    """Tokens whose K and V are in the cache: the first ``num_computed`` ones."""
    block_table: list[int] = field(init=False, default_factory=list, repr=False)
    """Ids of its blocks; position p lies in ``block_table[p // block_size]``."""
    sampler_row: int | None = field(init=False, default=None)
    """The row, 0 to max_num_seqs - 1, of its sampling state on the device; held exactly while RUNNING."""
    overtaken: int = field(init=False, default=0)
    """How often a younger sequence was admitted before it since it began to wait."""
    finish_reason: FinishReason | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def status(self) -> SequenceStatus:
        if self.finish_reason is not None:
            return SequenceStatus.FINISHED
        return SequenceStatus.WAITING if self.sampler_row is None else SequenceStatus.RUNNING

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def max_cached(self) -> int:
        """The most tokens it will ever have in the cache; the last token generated is never computed."""
        return self.num_prompt + max(self.params.max_tokens - 1, 0)

    @property
    def is_decode(self) -> bool:
        """Exactly one token is left to compute."""
        return self.num_uncomputed == 1

    def stop_reason(self) -> FinishReason | None:
        """Why it ends at the last of ``tokens``; None: it goes on. Asked when no token was left to compute."""
        params = self.params
        if self.num_generated > 0 and self.num_generated >= params.min_tokens:
            token = self.tokens[-1]
            if token in params.stop_token_ids or (token in self.eos_token_ids and not params.ignore_eos):
                return FinishReason.STOP
        return FinishReason.LENGTH if self.num_generated >= params.max_tokens else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens ``start`` to ``end - 1`` of one sequence, computed in one step; a decode is a chunk of 1.

    ``samples``: it reaches the last token known when the plan was made, and the step samples the next one.
    A chunk with ``start`` 0 is the first under its sequence's sampler row, also after a preemption.
    """

    sequence: Sequence
    start: int
    length: int
    samples: bool = field(init=False)

    def __post_init__(self) -> None:
        # Fixed at birth: completing a plan appends to the sequence's tokens.
        samples = self.end == len(self.sequence.tokens) and self.sequence.params.max_tokens > 0
        object.__setattr__(self, "samples", samples)

    @property
    def end(self) -> int:
        return self.start + self.length
