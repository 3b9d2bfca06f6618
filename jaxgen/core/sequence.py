"""The host's state of one request while it lives, and the piece of it that a step computes. Host only, no jax."""

from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Protocol

import numpy as np

from jaxgen.core.request import FinishReason, Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.service_class import ServiceClass


class TokenConstraint(Protocol):
    """What a sequence may sample next, such as the state of a grammar."""

    @property
    def mask(self) -> np.ndarray:
        """Allowed tokens: bit i of word w is that of token 32 * w + i. int32, ceil(vocabulary / 32)."""
        ...


class SequenceStatus(StrEnum):
    """Where a sequence stands. ENDING: its last token is on the way, and it holds nothing any more."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    FINISHED = "finished"


class Level(IntEnum):
    """Who is served first. PROMISED: those whose class has targets, and those who have waited for long."""

    PROMISED = 0
    BEST_EFFORT = 1
    BACKGROUND = 2


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way. Made WAITING; from ``Scheduler.add`` on only the scheduler changes it.

    ``eos_token_ids`` are the model's end-of-sequence tokens. ``arrival`` is the order of coming: smaller is older.
    ``seed`` is the seed in effect, the request's own or one drawn for it. ``grammar`` is where it stands in its
    request's grammar; whoever reads its tokens keeps it up with them.
    """

    request: Request
    _: KW_ONLY
    eos_token_ids: frozenset[int]
    arrival: int
    seed: int
    grammar: TokenConstraint | None = field(default=None, repr=False)
    service: ServiceClass = field(init=False)
    """Its request's class, without the targets if it was accepted although it would miss them."""
    status: SequenceStatus = field(init=False, default=SequenceStatus.WAITING)
    tokens: list[int] = field(init=False, repr=False)
    """The prompt and what was generated and has arrived; it only grows."""
    num_pending: int = field(init=False, default=0)
    """Tokens that planned steps sample and that have not arrived."""
    num_computed: int = field(init=False, default=0)
    """Tokens whose K and V are in the cache once the planned steps have run: the first ``num_computed`` ones."""
    block_table: list[int] = field(init=False, default_factory=list, repr=False)
    """Ids of its blocks; position p lies in ``block_table[p // block_size]``."""
    row: int | None = field(init=False, default=None)
    """The row, 0 to max_num_seqs - 1, of its state on the device; held exactly while RUNNING."""
    num_cached: int = field(init=False, default=0)
    """Tokens found in the prefix cache when it was first admitted, or restored from the host then."""
    num_expected: int = field(init=False, default=0)
    """Tokens that it will find there, as far as was known when it came."""
    num_expected_shared: int = field(init=False, default=0)
    """Blocks of these that others hold, or will hold before it."""
    restore: "Restore | None" = field(init=False, default=None, repr=False)
    """Blocks of it that are on their way from the host."""
    awaited: "Restore | None" = field(init=False, default=None, repr=False)
    """Another's restore that it was not admitted before, since it wants much of the same; one while it waits."""
    block_keys: list[bytes] = field(init=False, default_factory=list, repr=False)
    """Prefix-cache keys of its first full blocks, as many as were asked for so far."""
    num_shared: int = field(init=False, default=0)
    """Blocks of ``block_table``, counted from the first, that the prefix cache found when it was admitted."""
    num_registered: int = field(init=False, default=0)
    """Blocks of ``block_table``, counted from the first, whose content the prefix cache was told."""
    level: Level = field(init=False)
    place: tuple[float, int] = field(init=False)
    """Its place within its level: when it is due to begin, seconds by the scheduler's clock, and an arrival."""
    overtaken: int = field(init=False, default=0)
    """How often one behind it in that order was admitted before it since it began to wait."""
    num_preemptions: int = field(init=False, default=0)
    finish_reason: FinishReason | None = field(init=False, default=None)
    num_prompt: int = field(init=False)
    max_length: int = field(init=False)
    """The most tokens it will ever have, prompt and generated."""
    max_cached: int = field(init=False)
    """The most tokens it will ever have in the cache; the last token generated is never computed."""
    _min_length: int = field(init=False, repr=False)
    _stop_tokens: frozenset[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        params = self.params
        self.service = self.request.service
        self.level = Level.PROMISED if self.service.promises else Level.BEST_EFFORT
        if self.request.background:
            self.level = Level.BACKGROUND
        self.place = 0.0, self.arrival
        self.tokens = list(self.request.prompt)
        self.num_prompt = len(self.tokens)
        self.max_length = self.num_prompt + params.max_tokens
        self.max_cached = max(self.max_length - 1, self.num_prompt)
        self._min_length = self.num_prompt + max(params.min_tokens, 1)  # no token of the prompt ends it
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
    def due(self) -> float:
        return self.place[0]

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Its place in the order in which sequences are served, smaller first."""
        return self.level, *self.place

    @property
    def num_tokens(self) -> int:
        """Its tokens, those on the way included."""
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
        """Tokens of it that steps are expected to compute before it decodes."""
        return self.num_uncomputed - (self.num_expected if self.row is None else 0)

    @property
    def waits_for_host(self) -> bool:
        """Nothing of it can be computed before its blocks have come from the host."""
        return self.restore is not None and self.num_computed == self.restore.start

    @property
    def waits_for_token(self) -> bool:
        """Its last token has not arrived, and what may follow depends on it."""
        return self.grammar is not None and self.num_pending > 0

    @property
    def is_decode(self) -> bool:
        """Exactly one token is left to compute."""
        return self.num_uncomputed == 1

    @property
    def is_late(self) -> bool:
        """Whether it was accepted although it would miss what its class promises."""
        return self.service is not self.request.service

    def give_up_promises(self) -> None:
        """It waits like those to which nothing was promised."""
        self.service = self.service.without_targets()
        self.level = Level.BEST_EFFORT

    def stop_reason(self) -> FinishReason | None:
        """Why it ends at the last of ``tokens``; None: it goes on. Asked when the prompt is computed."""
        length = len(self.tokens)
        if self.tokens[-1] in self._stop_tokens and length >= self._min_length:
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self.max_length else None


@dataclass(slots=True, eq=False)  # not frozen: that makes its birth, 256 times a step, four times as long
class Chunk:
    """Consecutive tokens ``start`` to ``end - 1`` of one sequence, computed in one step; a decode is a chunk of 1.

    ``samples``: it reaches the last token known or on the way when the plan was made, and the step samples the next.
    A chunk with ``start >= len(sequence.tokens)`` when the plan was made is a decode of a token still on the way, which
    the device knows already. Never changed once made.
    """

    sequence: Sequence
    start: int
    length: int
    end: int = field(init=False)
    samples: bool = field(init=False)

    def __post_init__(self) -> None:
        # Fixed at birth: planning and completing change the sequence.
        sequence = self.sequence
        self.end = self.start + self.length
        self.samples = (
            self.end == len(sequence.tokens) + sequence.num_pending and sequence.max_length > sequence.num_prompt
        )


@dataclass(slots=True, eq=False)
class Restore:
    """Blocks of a sequence that come from host memory: those of ``keys``, from ``block_table[first]`` on.

    The sequence computes up to token ``start`` meanwhile, and goes on at token ``end`` when they are there.
    """

    sequence: Sequence
    first: int
    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]
    pieces: tuple[Any, ...]
    """Theirs, pinned in the host store."""
    start: int
    end: int
    seconds: float
    """Predicted, for computing and copying together."""
    num_projected: int = field(default=0)
    """Blocks, the first ones, that come as layer inputs and are projected; the others come as K and V."""
    landed: bool = field(default=False)
    """All of it is in the cache."""
    cancelled: bool = field(default=False)
    """The blocks are no longer the sequence's: nothing may be written there."""

    @property
    def is_under_way(self) -> bool:
        """Its sequence counts on it still: it has not ended, failed or been cancelled."""
        return self.sequence.restore is self
