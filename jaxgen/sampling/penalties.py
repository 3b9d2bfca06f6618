"""State for penalties, on the device: the tokens of each sequence's prompt and output."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from jaxgen.arrays import ArrayLike
from jaxgen.sampling.condition import Condition, either


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PenaltyState:
    """One row of V tokens for each sequence that may run at the same time (S = max_num_seqs)."""

    output_counts: Int32[ArrayLike, "S V"]
    """How often each token was generated."""
    prompt_seen: Bool[ArrayLike, "S V"]
    """Whether each token is in the prompt."""


@dataclass(frozen=True)
class UncountedTokens:
    """Generated tokens that a PenaltyState does not count, and which of them come before each of n samples."""

    tokens: Int32[ArrayLike, "D"]
    before: Bool[ArrayLike, "n D"]

    def add_to(self, counts: Int32[Array, "n V"]) -> Int32[Array, "n V"]:
        """Return the counts of each sample with the tokens before it."""
        samples = jnp.arange(len(counts))[:, None]
        return counts.at[samples, self.tokens].add(self.before.astype(jnp.int32))


def init_penalties(num_rows: int, vocab_size: int, zeros: Callable[..., Array] = jnp.zeros) -> PenaltyState:
    """Return a state without any tokens: num_rows * vocab_size * 5 bytes. ``zeros`` makes its arrays."""
    shape = (num_rows, vocab_size)
    return PenaltyState(zeros(shape, jnp.int32), zeros(shape, jnp.bool_))


def count_output(
    state: PenaltyState, tokens: Int32[Array, "T"], rows: Int32[Array, "T"], needed: Condition | None = None
) -> PenaltyState:
    """Return the state after generated tokens: token t counts in row ``rows[t]``, and in no row if that is S.

    The state should be donated: it is then updated in place. ``needed``: None: if any token counts.
    """

    def count() -> PenaltyState:
        return PenaltyState(state.output_counts.at[rows, tokens].add(1, mode="drop"), state.prompt_seen)

    counts = jnp.any(rows < state.output_counts.shape[0]) if needed is None else needed
    return either(counts, count, lambda: state)
