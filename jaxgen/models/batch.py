"""The tokens that models take: a step's StepBatch, of fixed shape, and the tokens of blocks."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxgen.arrays import ArrayLike


@dataclass(frozen=True)
class BlockTokens:
    """Tokens that fill blocks of the cache: what layers need of a StepBatch to write K and V."""

    positions: Int[ArrayLike, "T"]
    slots: tuple[Int[ArrayLike, "T"]]
    """Of the one kind of cache."""
    num_tokens: Int[ArrayLike, ""]
    layer_inputs: None = None
    """K and V need none."""

    @classmethod
    def of(
        cls, ids: Int[Array, "m"], count: Int[Array, ""], positions: Int[Array, "T"], num_blocks: int
    ) -> "BlockTokens":
        """Return the tokens of the blocks ``ids[:count]`` of a cache; those of the other ids are padding."""
        m, B = len(ids), len(positions) // len(ids)
        blocks = jnp.where(jnp.arange(m) < count, ids, num_blocks)
        slots = (blocks[:, None] * B + jnp.arange(B)).reshape(m * B)
        return cls(positions, (slots,), count * B)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepBatch:
    """Chunks laid end to end, padded: T tokens, R = min(T, S) chunks and samples, M = blocks of the longest sequence.

    Padding has no effect. A padded token writes to the slot after the last, which is dropped, and belongs to no row. A
    padded row has no tokens, and a padded sample is not read.
    """

    tokens: Int[ArrayLike, "T"]
    positions: Int[ArrayLike, "T"]
    slots: tuple[Int[ArrayLike, "T"], ...]
    """By kind of cache: the slot in its array for each token's K and V."""
    token_rows: Int[ArrayLike, "T"]
    """The row of the RowState, of S = max_num_seqs, that each token belongs to; S for padding."""
    query_starts: Int[ArrayLike, "R1"]
    """Chunk r owns tokens query_starts[r] : query_starts[r + 1]; R1 = R + 1."""
    context_lens: Int[ArrayLike, "R"]
    block_tables: tuple[Int[ArrayLike, "R M"], ...]
    """By kind of cache. In a kind with a window, entries before the window repeat its first block."""
    rows: Int[ArrayLike, "R"]
    """The row of the RowState that each chunk belongs to; S for padding."""
    num_tokens: Int[ArrayLike, ""]
    num_rows: Int[ArrayLike, ""]
    num_decodes: Int[ArrayLike, ""]
    """Number of decodes: chunks below this index have one token."""
    sample_at: Int[ArrayLike, "R"]
    """The token of the batch after which each sample is taken."""
    sample_rows: Int[ArrayLike, "R"]
    """The row of the RowState that each sample is of; S for padding. Samples of one row follow one another."""
    sample_positions: Int[ArrayLike, "R"]
    """The position of each sample in its sequence."""
    num_samples: Int[ArrayLike, ""]
    want_logprobs: Bool[ArrayLike, ""]
    prompt_targets: Int[ArrayLike, "T"]
    """For each token, the prompt token whose log-probability is wanted from its logits, or -1."""
    layer_inputs: Float[ArrayLike, "L T d"] | None = None
    """What each layer takes of the tokens in addition, in a model with embeddings for each layer."""
    attention_plan: Any = None
    """The attention kernel's plan of the batch for all layers; see jaxgen.models.attention."""
