"""What penalties need to know of each sequence, kept on the device: the tokens of its prompt and of its output."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from jaxgen.leaf import Leaf


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PenaltyState:
    """One sampler row of V tokens for each sequence that may run at once (S = max_num_seqs)."""

    output_counts: Int32[Leaf, "S V"]
    """How often each token was generated."""
    prompt_seen: Bool[Leaf, "S V"]
    """Whether each token is in the prompt."""


def init_penalties(num_rows: int, vocab_size: int) -> PenaltyState:
    """A state that has seen nothing: num_rows * vocab_size * 5 bytes."""
    shape = (num_rows, vocab_size)
    return PenaltyState(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.bool_))


def update_penalties(
    state: PenaltyState,
    tokens: Int32[Array, "T"],
    rows: Int32[Array, "T"],
    is_output: Bool[Array, "T"],
    resets: Bool[Array, "S"],
) -> PenaltyState:
    """The state after a step's input tokens.

    Sampler rows marked in ``resets`` are emptied first: those whose sequence starts from position 0 in this step, also
    after a preemption. Then token t is counted in row ``rows[t]``: as generated where ``is_output[t]``, else as part of
    the prompt. A token in row S is not counted; rows and tokens must not be negative.

    Give the state away (donate it): it is updated in place, and untouched when no token is counted.
    """

    def count(state: PenaltyState) -> PenaltyState:
        nowhere = jnp.full_like(rows, state.output_counts.shape[0])
        state = _empty(state, resets)
        return PenaltyState(
            output_counts=state.output_counts.at[jnp.where(is_output, rows, nowhere), tokens].add(1, mode="drop"),
            prompt_seen=state.prompt_seen.at[jnp.where(is_output, nowhere, rows), tokens].set(True, mode="drop"),
        )

    used = jnp.any(rows < state.output_counts.shape[0]) | jnp.any(resets)
    updated: PenaltyState = jax.lax.cond(used, count, lambda state: state, state)
    return updated


def _empty(state: PenaltyState, resets: Bool[Array, "S"]) -> PenaltyState:
    # A loop over the rows that are emptied: a select over all of them would read and write the whole state.
    (marked,) = jnp.nonzero(resets, size=resets.shape[0])

    def empty_row(i: Array, state: PenaltyState) -> PenaltyState:
        return PenaltyState(state.output_counts.at[marked[i]].set(0), state.prompt_seen.at[marked[i]].set(False))

    emptied: PenaltyState = jax.lax.fori_loop(0, jnp.sum(resets, dtype=jnp.int32), empty_row, state)
    return emptied
