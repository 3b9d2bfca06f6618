"""The host's state of one request until it ends, and the chunk of it that a step computes. Host only, no jax."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from jaxgen.core.request import FinishReason, Request
from jaxgen.core.sampling_params import Sampling, SamplingParams
from jaxgen.core.standing import Level, Standing


class TokenConstraint(Protocol):
    """A constraint on the next token of a sequence, such as the state of a grammar."""

    @property
    def changes(self) -> bool:
        """Whether the allowed tokens depend on the tokens so far."""
        ...

    @property
    def behind(self) -> bool:
        """Whether its last token is not counted in ``mask`` yet."""
        ...

    @property
    def mask(self) -> np.ndarray:
        """Allowed tokens: bit i of word w is the bit of token 32 * w + i. int32 [ceil(vocabulary / 32)]."""
        ...


class SequenceStatus(StrEnum):
    """State of a sequence. ENDING: its last token is in flight, and it has no row and no blocks any more."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class WindowBlocks:
    """What a sequence has in the pool of a kind of cache with a window."""

    table: list[int] = field(default_factory=list)
    """Ids of its blocks by position, as ``SequenceBlocks.table``; entries before ``num_freed`` are out of date."""
    num_freed: int = 0
    """Blocks at the front of ``table`` that no later token attends to, and that were given back or never held."""
    num_restored: int = 0
    """Blocks at the front of ``table`` that it got with a restore, found ones and those from host memory."""

    def entry(self, index: int) -> int:
        """Return the id of the block of tokens ``index * block_size`` and those after it."""
        return self.table[index]

    def ids(self, first: int = 0, end: int | None = None) -> tuple[int, ...]:
        """Return the ids of its blocks from index ``first`` to ``end - 1``; None: to its last."""
        return tuple(self.table[first:end])


@dataclass(slots=True, eq=False)
class SequenceBlocks:
    """The blocks of a sequence, and what is on its way into them. ``jaxgen.cache`` alone writes it; others ask its
    methods for blocks. ``KVCacheManager`` draws the parts of a sequence."""

    table: list[int] = field(default_factory=list)
    """Ids of its blocks; position p is in ``table[p // block_size]``."""
    keys: list[bytes] = field(default_factory=list)
    """Prefix-cache keys of its first full blocks, as far as they were computed."""
    windows: tuple[WindowBlocks, ...] = ()
    """Its blocks of each kind of cache after the first."""
    num_shared: int = 0
    """Blocks at the front of ``table`` that the prefix cache found."""
    num_registered: int = 0
    """Blocks at the front of ``table`` that are registered in the prefix cache."""
    num_cached: int = 0
    """Tokens found in the prefix cache when it was first admitted, or restored from the host then."""
    restore: "Restore | None" = None
    """The restore under way of its blocks from host memory."""
    awaited: "Restore | None" = None
    """A restore of another sequence that it waits for, since it needs half or more of the same blocks; it waits for
    one restore only."""
    fetch: "Fetch | None" = None
    """The fetch of its blocks from a KV tier, or another sequence's that brings the same ones."""

    @property
    def num_held(self) -> int:
        """How many blocks it has."""
        return len(self.table)

    def entry(self, index: int) -> int:
        """Return the id of the block of tokens ``index * block_size`` and those after it."""
        return self.table[index]

    def ids(self, first: int = 0, end: int | None = None) -> tuple[int, ...]:
        """Return the ids of its blocks from index ``first`` to ``end - 1``; None: to its last."""
        return tuple(self.table[first:end])


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """The state of one request. It begins WAITING. After ``Scheduler.add`` each part has one package that writes it.

    ``jaxgen.cache`` writes ``blocks``, ``tokens``, ``row``, ``status`` and the counts of tokens. ``jaxgen.scheduling``
    writes ``standing`` and ``finish_reason``. The rest is complete at birth.

    ``eos_token_ids``: the model's end-of-sequence tokens. ``arrival``: its number in the order of arrival. ``seed``:
    the seed in effect, the request's own or one drawn for it. ``constraint``: which tokens it may have; the engine,
    which reads its tokens, advances that.
    """

    request: Request
    _: KW_ONLY
    eos_token_ids: frozenset[int]
    arrival: int
    seed: int
    constraint: TokenConstraint | None = field(default=None, repr=False)
    row: int | None = None
    """The row, 0 to max_num_seqs - 1, of its state on the device; None unless RUNNING."""
    blocks: SequenceBlocks = field(default_factory=SequenceBlocks, repr=False)
    standing: Standing = field(init=False, repr=False)
    status: SequenceStatus = field(init=False, default=SequenceStatus.WAITING)
    tokens: list[int] = field(init=False, repr=False)
    """The prompt and the generated tokens that have arrived; the list only grows."""
    num_pending: int = field(init=False, default=0)
    """Tokens that planned steps sample and that have not arrived yet."""
    num_forced: int = field(init=False, default=0)
    """How many of its last tokens no step sampled, since its constraint allowed no others."""
    num_computed: int = field(init=False, default=0)
    """How many of its first tokens have K and V in the cache once the planned steps have run."""
    finish_reason: FinishReason | None = field(init=False, default=None)
    sampling: Sampling = field(init=False, repr=False)
    """The work of choosing its tokens."""
    num_prompt: int = field(init=False)
    num_given: int = field(init=False)
    """Tokens that it began with: the prompt, and what a resumed answer had. Its place and limits count these."""
    max_length: int = field(init=False)
    """The most tokens it will ever have, prompt and generated."""
    max_cached: int = field(init=False)
    """The most tokens it will ever have in the cache; the last token generated is never computed."""
    _min_length: int = field(init=False, repr=False)
    _stop_tokens: frozenset[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        params = self.params
        level = Level.BACKGROUND if self.request.background else Level.BEST_EFFORT
        self.standing = Standing(self.request.service, level, (0.0, self.arrival))
        self.sampling = params.sampling if self.constraint is None else Sampling.ADJUSTED
        self.num_prompt, self.num_given = len(self.request.prompt), self.request.num_given
        self.tokens = [*self.request.prompt, *self.request.answer]  # as after a preemption
        self.max_length = self.num_prompt + params.max_tokens
        self.max_cached = max(self.max_length - 1, self.num_prompt)
        # No token of the prompt ends it. A constraint handles min_tokens itself: it may allow the end alone before.
        self._min_length = self.num_prompt + max(1, params.min_tokens if self.constraint is None else 0)
        self._stop_tokens = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self._stop_tokens |= self.eos_token_ids

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def num_tokens(self) -> int:
        """Number of tokens, including pending ones."""
        return len(self.tokens) + self.num_pending

    @property
    def num_generated(self) -> int:
        """Generated tokens that have arrived."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def num_to_compute(self) -> int:
        """Tokens that steps are expected to compute before it decodes."""
        return self.num_uncomputed - (self.standing.num_expected if self.row is None else 0)

    @property
    def waits_for_host(self) -> bool:
        """Whether none of its tokens can be computed before its blocks have arrived from the host."""
        restore = self.blocks.restore
        return restore is not None and self.num_computed == restore.start

    @property
    def waits_for_token(self) -> bool:
        """Whether its last token, which decides what the next may be, is pending or was not followed yet."""
        constraint = self.constraint
        return constraint is not None and constraint.changes and (self.num_pending > 0 or constraint.behind)

    @property
    def is_decode(self) -> bool:
        """Whether one token at most is left to compute, and forced ones behind it."""
        # num_uncomputed, without a call: it is asked of each running sequence in each step.
        return len(self.tokens) + self.num_pending - self.num_computed <= 1 + self.num_forced

    def stop_reason(self) -> FinishReason | None:
        """Return why it ends at the last of ``tokens``, or None if it does not. Valid once the prompt is computed."""
        length = len(self.tokens)
        if self.tokens[-1] in self._stop_tokens and length >= self._min_length:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self.max_length else None


@dataclass(slots=True, eq=False)  # not frozen: creating one, 256 times a step, would take four times as long
class Chunk:
    """Consecutive tokens ``start`` to ``end - 1`` of one sequence, computed in one step; a decode is a chunk of 1.

    ``samples``: it reaches the sequence's last token, known or pending, and the step samples the next one. A chunk with
    ``start >= len(sequence.tokens)`` when the plan was made is a decode of a pending token, which the device has
    already. Its last tokens may be ``drafts``: guesses of what follows the sequence's last token. The step samples a
    token after that and after each draft. Never changed after it is created.
    """

    sequence: Sequence
    start: int
    length: int
    drafts: tuple[int, ...] = ()
    end: int = field(init=False)
    samples: bool = field(init=False)
    num_samples: int = field(init=False)
    """Number of tokens that the step samples for it."""

    def __post_init__(self) -> None:
        # Fixed here, because planning and completing steps change the sequence.
        sequence = self.sequence
        self.end = self.start + self.length
        self.samples = bool(self.drafts) or (
            self.end == len(sequence.tokens) + sequence.num_pending and sequence.max_length > sequence.num_prompt
        )
        self.num_samples = 1 + len(self.drafts) if self.samples else 0

    @property
    def num_known(self) -> int:
        """Number of its tokens without the drafts."""
        return self.length - len(self.drafts)

    def num_accepted(self, sampled: list[int]) -> int:
        """Return how many of its drafts are the tokens that the step sampled at their places."""
        return next((i for i, draft in enumerate(self.drafts) if draft != sampled[i]), len(self.drafts))


@dataclass(frozen=True, slots=True)
class StateRestore:
    """A snapshot that comes back from host memory: its key there, its content, and its place on the device."""

    key: bytes
    piece: Any
    """Pinned in the host store."""
    snapshot: int


@dataclass(frozen=True, slots=True)
class WindowRestore:
    """Blocks of a kind of cache with a window that come back from host memory, with their keys and contents there.

    ``kind``: the number of the kind among all of the cache.
    """

    kind: int
    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]
    pieces: tuple[Any, ...]
    """Pinned in the host store."""


@dataclass(slots=True, eq=False)
class Restore:
    """A restore of KV blocks from host memory: those of ``keys``, into a sequence's block ``first`` and those after it.

    Meanwhile the sequence computes its tokens up to ``start``. It continues at token ``end`` once the blocks are there.
    Without blocks, it waits for a state or for blocks of windows alone.
    """

    sequence: Sequence
    first: int
    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]
    pieces: tuple[Any, ...]
    """Contents of these blocks, pinned in the host store."""
    start: int
    end: int
    seconds: float
    """Predicted seconds for recomputing and copying together."""
    num_projected: int = field(default=0)
    """How many of the first blocks arrive as layer inputs and are projected; the others arrive as K and V."""
    state: StateRestore | None = field(default=None)
    """The snapshot at ``end`` that comes with the blocks; None: the device has it, or the model has no states."""
    windows: tuple[WindowRestore, ...] = field(default=())
    """The blocks of windows before ``end`` that come too."""
    can_compute: bool = field(default=True)
    """Whether its sequence could compute its tokens too. If not, it lacks the state, or a window, at ``start``."""
    arrived: bool = field(default=False)
    """Whether all blocks are in the cache."""
    cancelled: bool = field(default=False)
    """Whether the blocks no longer belong to the sequence, so that they must not be written."""

    @property
    def is_under_way(self) -> bool:
        """Whether its sequence still waits for it: it has not ended, failed or been cancelled."""
        return self.sequence.blocks.restore is self


@dataclass(slots=True, eq=False)
class Fetch:
    """A fetch of KV blocks from a KV tier into host memory, for a waiting sequence; the tier's prefetcher changes it.

    The blocks are those of ``keys``, which follow the sequence's first ``start`` tokens, and the first of ``states``.
    """

    sequence: Sequence
    start: int
    keys: list[bytes]
    num_waiting: int
    """How many other sequences waited when it was asked for."""
    states: list[bytes] = field(default_factory=list)
    """Keys of the snapshots at the ends of the blocks after ``start``. The last that the tier has comes before the
    blocks up to it, of which the first may be known. Empty: the model has no states."""
    at_end: Callable[[int], list[bytes]] | None = field(default=None)
    """Returns the keys of blocks of windows that are needed at the end of the first N blocks of ``keys``. They come
    before these. None: the cache has no windows."""
    max_wait: float = field(default=0.0)
    """Seconds that a sequence waits for it at most. 0: it is a probe, and none waits."""
    waited_from: float | None = field(default=None)
    """When a sequence that could have begun first waited for it, in seconds of the tier's clock."""
    num_arrived: int = field(default=0)
    found: bool = field(default=False)
    """Whether the tier has told what it has of the blocks."""
    ended: bool = field(default=False)
