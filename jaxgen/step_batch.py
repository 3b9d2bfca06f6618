"""StepBatch, the one shape a step takes, and ``Packer``: the only place where padding lives."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int

from jaxgen.config import EngineConfig
from jaxgen.leaf import Leaf
from jaxgen.row_params import RowPacker, has_penalties
from jaxgen.sampling import RowParams
from jaxgen.scheduler import StepPlan
from jaxgen.sequence import Chunk


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepBatch:
    """Chunks laid end to end, padded: T = token_budget, R = max_num_seqs, M = blocks of the longest sequence.

    Padding is harmless by construction: a padded token writes to slot num_slots, which is dropped, and belongs to no
    row; a padded row has no tokens, and what is sampled for it is not read.
    """

    tokens: Int[Leaf, "T"]
    positions: Int[Leaf, "T"]
    slots: Int[Leaf, "T"]
    """Where each token's K and V go."""
    query_starts: Int[Leaf, "R1"]
    """Row r owns tokens query_starts[r] : query_starts[r + 1]; R1 = R + 1."""
    context_lens: Int[Leaf, "R"]
    block_tables: Int[Leaf, "R M"]
    num_rows: Int[Leaf, ""]
    num_decodes: Int[Leaf, ""]
    """Rows below this have one token."""
    rows: RowParams
    """How each row's next token is chosen."""
    want_logprobs: Bool[Leaf, ""]
    prompt_targets: Int[Leaf, "T"]
    """The prompt token whose log-probability is wanted from this token's logits, or -1."""
    penalty_rows: Int[Leaf, "T"]
    """The sampler row that counts this token for penalties; max_num_seqs where none does."""
    is_output: Bool[Leaf, "T"]
    """True for generated tokens, False for those of the prompt."""
    penalty_resets: Bool[Leaf, "R"]
    """Sampler rows whose counts start anew before this step."""


class Packer:
    """Turns plans into batches of the one shape."""

    def __init__(self, config: EngineConfig, vocab_size: int):
        self._config = config
        self._rows = RowPacker(config, vocab_size)
        self._blocks_per_sequence = -(-config.scheduler.max_model_len // config.cache.block_size)

    def pack(self, plan: StepPlan) -> StepBatch:
        """The batch that computes ``plan``; raises ValueError when the plan exceeds the shape."""
        T, R = self._config.scheduler.token_budget, self._config.scheduler.max_num_seqs
        if plan.num_tokens > T or len(plan.chunks) > R:
            raise ValueError(f"a plan of {plan.num_tokens} tokens in {len(plan.chunks)} chunks exceeds {T} in {R}")
        tokens, positions = np.zeros(T, np.int32), np.zeros(T, np.int32)
        slots = np.full(T, self._config.cache.num_slots, np.int32)
        starts = np.full(R + 1, plan.num_tokens, np.int32)
        context_lens = np.zeros(R, np.int32)
        tables = np.zeros((R, self._blocks_per_sequence), np.int32)
        targets = np.full(T, -1, np.int32)
        penalty_rows, is_output = np.full(T, R, np.int32), np.zeros(T, bool)
        resets = np.zeros(R, bool)
        at = 0
        for row, chunk in enumerate(plan.chunks):
            sequence, here = chunk.sequence, slice(at, at + chunk.length)
            tokens[here] = sequence.tokens[chunk.start : chunk.end]
            positions[here] = np.arange(chunk.start, chunk.end)
            table = np.asarray(sequence.block_table, np.int32)
            slots[here] = self._slots(table, positions[here])
            starts[row] = at
            context_lens[row] = chunk.end
            tables[row, : len(table)] = table
            self._pack_prompt_targets(chunk, targets[here])
            if has_penalties(sequence.params):
                assert sequence.sampler_row is not None, "held by every running sequence"
                penalty_rows[here] = sequence.sampler_row
                is_output[here] = positions[here] >= sequence.num_prompt
                resets[sequence.sampler_row] = chunk.start == 0
            at += chunk.length
        arrays: dict[str, Any] = {
            "tokens": tokens,
            "positions": positions,
            "slots": slots,
            "query_starts": starts,
            "context_lens": context_lens,
            "block_tables": tables,
            "num_rows": np.array(len(plan.chunks), np.int32),
            "num_decodes": np.array(sum(chunk.length == 1 for chunk in plan.chunks), np.int32),
            "want_logprobs": np.array(any(c.samples and c.sequence.params.logprobs is not None for c in plan.chunks)),
            "prompt_targets": targets,
            "penalty_rows": penalty_rows,
            "is_output": is_output,
            "penalty_resets": resets,
        }
        return StepBatch(rows=self._rows.pack(plan), **arrays)

    def _slots(self, table: np.ndarray, positions: np.ndarray) -> np.ndarray:
        block_size = self._config.cache.block_size
        return table[positions // block_size] * block_size + positions % block_size

    @staticmethod
    def _pack_prompt_targets(chunk: Chunk, targets: np.ndarray) -> None:
        sequence = chunk.sequence
        if sequence.params.prompt_logprobs is None:
            return
        wanted = sequence.tokens[chunk.start + 1 : min(chunk.end + 1, sequence.num_prompt)]
        targets[: len(wanted)] = wanted
