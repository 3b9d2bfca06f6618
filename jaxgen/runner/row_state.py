"""State of each running sequence on the device: loaded once, at admission, instead of sent with each step.

The scheduler gives each running sequence a row; a step names the rows of its chunks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from jaxgen.arrays import ArrayLike, PackedWords
from jaxgen.core.config import EngineConfig
from jaxgen.core.limits import MAX_MASKED_TOKENS
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.sampling.penalties import PenaltyState, init_penalties
from jaxgen.sampling.row_params import RowParams

ROWS_AT_ONCE = 8
"""Most rows that a step on a GPU loads itself. Others are loaded before it, each in a call of a program."""
MASKS_AT_ONCE = 8
"""Most rows whose allowed tokens are loaded in one call."""

BY_NAME = RowParams.__dataclass_fields__.keys() & SamplingParams.__dataclass_fields__.keys() - {"seed", "top_k"}
"""Parameters that a row has as they are."""

_WORD = 0xFFFFFFFF


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowState:
    """State of S = max_num_seqs rows. M: blocks of the longest sequence. Row S of ``params`` is for padding."""

    block_tables: tuple[Int32[ArrayLike, "S M"], ...]
    """By kind of cache."""
    last_tokens: Int32[ArrayLike, "S"]
    """The token that each row sampled last: the next step's input, even before the host has read it."""
    params: Int32[ArrayLike, "S1 P"]
    """Each row's RowParams, in the words of ``row_layout``."""
    penalties: PenaltyState
    allowed: Int32[ArrayLike, "S V32"]
    """Allowed next tokens of constrained rows: a bit for each token, 32 tokens in a word, the lowest bit first."""

    def with_sampled(self, rows: Int32[Array, "R"], tokens: Int32[Array, "R"]) -> "RowState":
        """Return the state with the tokens that these rows sampled; rows past the last one are padding."""
        return replace(self, last_tokens=self.last_tokens.at[rows].set(tokens, mode="drop"))


def row_layout(config: EngineConfig) -> PackedWords:
    """Return the layout of one row's RowParams."""
    return PackedWords(**RowParams.fields(config.max_logit_bias, MAX_MASKED_TOKENS))


def blocks_per_sequence(config: EngineConfig) -> int:
    return -(-config.scheduler.max_model_len // config.cache.block_size)


def init_rows(config: EngineConfig, vocab_size: int, zeros: Callable[..., Array] = jnp.zeros) -> RowState:
    """Return rows before any sequence is loaded: greedy and without penalties. ``zeros`` makes the large arrays."""
    S = config.scheduler.max_num_seqs
    return RowState(
        tuple(jnp.zeros((S, blocks_per_sequence(config)), jnp.int32) for _ in config.cache.blocks_of_kinds),
        jnp.zeros(S, jnp.int32),
        jnp.tile(_neutral(row_layout(config), vocab_size), (S + 1, 1)),
        init_penalties(S, vocab_size, zeros),
        zeros((S, mask_words(vocab_size)), jnp.int32),
    )


def mask_words(vocab_size: int) -> int:
    """Return the number of words with a bit for each token."""
    return -(-vocab_size // 32)


def load_row(state: RowState, words: Int32[Array, "W"]) -> RowState:
    """Return the state with one row loaded from ``RowLoader.words``. Meant to be jitted with the state donated."""
    row, M, params = words[0], state.block_tables[0].shape[1], words[-state.params.shape[1] :]
    tables = tuple(
        table.at[row].set(words[1 + kind * M : 1 + (kind + 1) * M]) for kind, table in enumerate(state.block_tables)
    )
    return replace(state, block_tables=tables, params=state.params.at[row].set(params))


def load_rows(state: RowState, words: Int32[Array, "8 W"]) -> RowState:
    """Return the state with rows loaded from ``RowLoader.rows``."""
    rows, M, params = words[:, 0], state.block_tables[0].shape[1], words[:, -state.params.shape[1] :]
    tables = tuple(
        table.at[rows].set(words[:, 1 + kind * M : 1 + (kind + 1) * M], mode="drop")
        for kind, table in enumerate(state.block_tables)
    )
    return replace(state, block_tables=tables, params=state.params.at[rows].set(params, mode="drop"))


def load_penalties(
    state: RowState, row: Int32[Array, ""], counts: Int32[Array, "V"], seen: Bool[Array, "V"]
) -> RowState:
    """Return the state with one row's penalty counts: how often each token was generated, and the prompt's tokens."""
    penalties = PenaltyState(
        state.penalties.output_counts.at[row].set(counts), state.penalties.prompt_seen.at[row].set(seen)
    )
    return replace(state, penalties=penalties)


def load_allowed(state: RowState, rows: Int32[Array, "8"], allowed: Int32[Array, "8 V32"]) -> RowState:
    """Return the state with the allowed next tokens of ``rows``, where S means no row. Meant to be jitted, donated."""
    return replace(state, allowed=state.allowed.at[rows].set(allowed, mode="drop"))


class RowLoader:
    """Packs the device's state of a sequence that was just admitted."""

    def __init__(self, config: EngineConfig, vocab_size: int):
        self._layout = row_layout(config)
        self._neutral = _neutral(self._layout, vocab_size)
        self._num_blocks = blocks_per_sequence(config)
        self._first_param = 1 + self._num_blocks * len(config.cache.blocks_of_kinds)
        self._num_rows = config.scheduler.max_num_seqs
        self._vocab_size = vocab_size
        self.num_words = self._first_param + self._layout.size

    def words(self, sequence: Sequence) -> np.ndarray:
        """Return row, block tables of all kinds and RowParams for ``load_row``."""
        assert sequence.row is not None, "held by every running sequence"
        words = np.zeros(self.num_words, np.int32)
        words[0] = sequence.row
        tables = [sequence.blocks.ids(), *(of_window.ids() for of_window in sequence.blocks.windows)]
        for first, ids in zip(range(1, self._first_param, self._num_blocks), tables, strict=True):
            words[first : first + len(ids)] = ids
        words[self._first_param :] = self._neutral
        self._fill(self._layout.views(words[self._first_param :]), sequence)
        return words

    def rows(self, sequences: Iterable[Sequence]) -> np.ndarray:
        """Return the words of at most ROWS_AT_ONCE sequences for ``load_rows``."""
        words = np.zeros((ROWS_AT_ONCE, self.num_words), np.int32)
        words[:, 0] = self._num_rows + 1  # no row, nor the one for padding
        for index, sequence in enumerate(sequences):
            words[index] = self.words(sequence)
        return words

    def penalties(self, sequence: Sequence) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return row, counts and prompt tokens for ``load_penalties``, from all tokens of the sequence so far."""
        prompt, output = sequence.tokens[: sequence.num_prompt], sequence.tokens[sequence.num_prompt :]
        counts = np.bincount(output, minlength=self._vocab_size).astype(np.int32)
        seen = np.zeros(self._vocab_size, np.bool_)
        seen[prompt] = True
        return np.array(sequence.row, np.int32), counts, seen

    def allowed(self, sequences: Iterable[Sequence]) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and masks for ``load_allowed``, of at most MASKS_AT_ONCE sequences with constraints."""
        rows = np.full(MASKS_AT_ONCE, self._num_rows, np.int32)
        masks = np.zeros((MASKS_AT_ONCE, mask_words(self._vocab_size)), np.int32)
        for index, sequence in enumerate(sequences):
            assert sequence.row is not None, "held by every running sequence"
            assert sequence.constraint is not None, "asked of sequences with a constraint"
            rows[index], masks[index] = sequence.row, sequence.constraint.mask
        return rows, masks

    def _fill(self, row: dict[str, np.ndarray], sequence: Sequence) -> None:
        params = sequence.params
        for name in BY_NAME:
            row[name][()] = getattr(params, name)
        row["top_k"][()] = min(params.top_k, self._vocab_size)
        row["presence"][()] = params.presence_penalty
        row["frequency"][()] = params.frequency_penalty
        row["repetition"][()] = params.repetition_penalty
        row["counted_from"][()] = len(sequence.tokens)
        row["seed"][:] = (sequence.seed >> 32) & _WORD, sequence.seed & _WORD
        row["bias_tokens"][: len(params.logit_bias)] = list(params.logit_bias)
        row["bias_values"][: len(params.logit_bias)] = list(params.logit_bias.values())
        row["constrained"][()] = sequence.constraint is not None
        if params.min_tokens and sequence.constraint is None:  # a constraint handles min_tokens itself
            masked = (frozenset() if params.ignore_eos else sequence.eos_token_ids) | set(params.stop_token_ids)
            row["masked_tokens"][: len(masked)] = sorted(masked)
            row["masked_until"][()] = sequence.num_prompt + params.min_tokens


def _neutral(layout: PackedWords, vocab_size: int) -> np.ndarray:
    words = np.zeros(layout.size, np.int32)
    row = layout.views(words)
    for name, value in RowParams.neutral_values(vocab_size).items():
        row[name][...] = value
    return words
