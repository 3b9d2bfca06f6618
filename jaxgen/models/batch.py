"""StepBatch, the one shape that a step takes, as models see it."""

from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Bool, Int

from jaxgen.arrays import ArrayLike


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepBatch:
    """Chunks laid end to end, padded: T tokens, R = max_num_seqs, M = blocks of the longest sequence.

    Padding is harmless by construction: a padded token writes to slot num_slots, which is dropped, and belongs to no
    row; a padded row has no tokens, and what is sampled for it is not read.
    """

    tokens: Int[ArrayLike, "T"]
    positions: Int[ArrayLike, "T"]
    slots: Int[ArrayLike, "T"]
    """Where each token's K and V go."""
    token_rows: Int[ArrayLike, "T"]
    """The row of the RowState that each token belongs to; R for padding."""
    query_starts: Int[ArrayLike, "R1"]
    """Chunk r owns tokens query_starts[r] : query_starts[r + 1]; R1 = R + 1."""
    context_lens: Int[ArrayLike, "R"]
    block_tables: Int[ArrayLike, "R M"]
    rows: Int[ArrayLike, "R"]
    """The row of the RowState that each chunk belongs to; R for padding."""
    num_tokens: Int[ArrayLike, ""]
    num_rows: Int[ArrayLike, ""]
    num_decodes: Int[ArrayLike, ""]
    """Chunks below this have one token."""
    want_logprobs: Bool[ArrayLike, ""]
    prompt_targets: Int[ArrayLike, "T"]
    """The prompt token whose log-probability is wanted from this token's logits, or -1."""
    attention_plan: Any = None
    """What the attention kernel made of the batch for all layers; see jaxgen.models.attention."""
