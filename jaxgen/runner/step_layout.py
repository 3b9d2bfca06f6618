"""The sizes of a step, where the words of its plan and rows are, and the shapes of its arguments."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxgen.arrays import PackedWords
from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import KVCache, init_cache
from jaxgen.models.model import PackedParams
from jaxgen.models.placement import abstract_packed_params
from jaxgen.runner.packer import batch_layout
from jaxgen.runner.program import int32
from jaxgen.runner.row_state import RowState, init_rows, row_layout


@dataclass(frozen=True)
class StepLayout:
    """A step of ``width`` tokens (T) in R = min(T, max_num_seqs) chunks."""

    model: ModelConfig
    config: EngineConfig
    width: int

    @property
    def num_rows(self) -> int:
        return min(self.width, self.config.scheduler.max_num_seqs)

    @property
    def has_drafts(self) -> bool:
        """Whether steps may have drafts."""
        return self.config.speculation is not None

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def plan(self) -> PackedWords:
        """The layout of a packed plan."""
        return batch_layout(self.width, self.num_rows, len(self.config.cache.blocks_of_kinds))

    @property
    def row_params(self) -> PackedWords:
        """The layout of a row's RowParams."""
        return row_layout(self.config)

    @property
    def words(self) -> jax.ShapeDtypeStruct:
        """The shape of a packed plan."""
        return int32(self.plan.size)

    @property
    def rows(self) -> RowState:
        """The shapes of the rows' state."""
        shapes: RowState = jax.eval_shape(lambda: init_rows(self.config, self.vocab_size))
        return shapes

    @property
    def products(self) -> jax.ShapeDtypeStruct:
        """The shape of the head's products, by sample."""
        return jax.ShapeDtypeStruct((self.num_rows, self.vocab_size), jnp.float32)

    def shapes(self, kernels: Kernels) -> tuple[PackedParams, KVCache, RowState, jax.ShapeDtypeStruct]:
        """Return the shapes of parameters and cache as these kernels read them, of rows, and of a packed plan."""
        cache: KVCache = jax.eval_shape(
            lambda: init_cache(self.model, self.config.cache, kernels, num_rows=self.config.scheduler.max_num_seqs)
        )
        return abstract_packed_params(self.model, kernels), cache, self.rows, self.words
