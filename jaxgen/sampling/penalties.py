"""What penalties need to know of each sequence, kept on the device: the tokens of its prompt and of its output."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from jaxgen.arrays import ArrayLike


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PenaltyState:
    """One row of V tokens for each sequence that may run at once (S = max_num_seqs)."""

    output_counts: Int32[ArrayLike, "S V"]
    """How often each token was generated."""
    prompt_seen: Bool[ArrayLike, "S V"]
    """Whether each token is in the prompt."""


def init_penalties(num_rows: int, vocab_size: int) -> PenaltyState:
    """A state that has seen nothing: num_rows * vocab_size * 5 bytes."""
    shape = (num_rows, vocab_size)
    return PenaltyState(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.bool_))


def count_output(state: PenaltyState, tokens: Int32[Array, "T"], rows: Int32[Array, "T"]) -> PenaltyState:
    """The state after generated tokens: token t counts in row ``rows[t]``, and nowhere if that is S.

    Give the state away (donate it): it is updated in place, and untouched when no token counts.
    """

    def count(state: PenaltyState) -> PenaltyState:
        return PenaltyState(state.output_counts.at[rows, tokens].add(1, mode="drop"), state.prompt_seen)

    counted: PenaltyState = jax.lax.cond(
        jnp.any(rows < state.output_counts.shape[0]), count, lambda state: state, state
    )
    return counted
