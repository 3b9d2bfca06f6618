"""A step's drafts, as its program knows them: penalties count a draft only for the samples that follow it."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from jaxgen.models.batch import StepBatch
from jaxgen.sampling.penalties import UncountedTokens


@dataclass(frozen=True)
class StepDrafts:
    """The input token of each sample of a step, and which of these are drafts.

    Sample r follows token r of ``tokens``. That is a draft if the sample before it is of the same row.
    """

    tokens: Int[Array, "R"]
    is_draft: Bool[Array, "R"]
    batch: StepBatch

    @classmethod
    def of(cls, batch: StepBatch) -> "StepDrafts":
        """Return the drafts of a batch."""
        index, rows = jnp.arange(len(batch.sample_rows)), batch.sample_rows
        is_draft = (index > 0) & (index < batch.num_samples) & (rows == jnp.roll(rows, 1))
        return cls(batch.tokens[batch.sample_at], is_draft, batch)

    def known_rows(self, padding: int) -> Int[Array, "T"]:
        """Return the row of each token of the batch, and ``padding`` for drafts."""
        rows = self.batch.token_rows
        at = jnp.where(self.is_draft, self.batch.sample_at, len(rows))
        return rows.at[at].set(padding, mode="drop")

    def before(self, piece: Callable[[Array], Array]) -> UncountedTokens:
        """Return the drafts that each sample of a piece follows."""
        index, rows = jnp.arange(len(self.tokens)), self.batch.sample_rows
        follows = (index <= piece(index)[:, None]) & (rows == piece(rows)[:, None])
        return UncountedTokens(self.tokens, follows & self.is_draft)

    def accepted(self, sampled: Int[Array, "R"]) -> Bool[Array, "R"]:
        """Return which drafts are what was sampled at their places, as are all drafts of the row before them."""
        index = jnp.arange(len(self.tokens))
        wrong = self.is_draft & (self.tokens != jnp.roll(sampled, 1))
        first = lax.cummax(jnp.where(self.is_draft, -1, index))  # sample of the same row
        return self.is_draft & (lax.cummax(jnp.where(wrong, index, -1)) < first)
