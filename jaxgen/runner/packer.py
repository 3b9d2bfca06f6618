"""Pack a plan into the fixed shape of a step. Padding is added only here."""

from dataclasses import replace
from functools import cache
from itertools import accumulate

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from jaxgen.arrays import PackedWords
from jaxgen.core.config import CacheConfig, EngineConfig
from jaxgen.core.sampling_params import Sampling
from jaxgen.core.sequence import Chunk
from jaxgen.core.step_plan import StepPlan
from jaxgen.models.batch import StepBatch
from jaxgen.runner.row_state import RowState

LAST_SAMPLED = -1
"""Input token id that stands for the token that the row sampled last, which the device has before the host."""


@cache
def batch_layout(width: int, num_rows: int, num_kinds: int = 1) -> PackedWords:
    """Return the layout of a packed plan of ``width`` tokens (T) in ``num_rows`` (R) chunks, with as many samples.

    Sample r is of the row ``sample_rows[r]``. It is taken after token ``sample_at[r]`` of the batch, and is the token
    at ``sample_positions[r]`` of its sequence.
    ``new_blocks`` has the blocks of the first kind of cache, one at most for each chunk, and ``begun_blocks`` those of
    each further kind, at the tokens that they begin with; -1: none.
    """
    begun = {"begun_blocks": ((num_kinds - 1, width), np.int32)} if num_kinds > 1 else {}
    return PackedWords(
        num_tokens=((), np.int32),
        num_rows=((), np.int32),
        num_decodes=((), np.int32),
        want_logprobs=((), np.int32),
        sampling=((), np.int32),
        num_samples=((), np.int32),
        query_starts=((num_rows + 1,), np.int32),
        context_lens=((num_rows,), np.int32),
        rows=((num_rows,), np.int32),
        new_blocks=((num_rows,), np.int32),
        sample_at=((num_rows,), np.int32),
        sample_rows=((num_rows,), np.int32),
        sample_positions=((num_rows,), np.int32),
        tokens=((width,), np.int32),
        prompt_targets=((width,), np.int32),
        **begun,
    )


class Packer:
    """Packs plans into vectors of one shape, which ``unpack`` turns into a StepBatch on the device."""

    def __init__(self, config: EngineConfig, width: int | None = None):
        """``width``: tokens of the shape; the token budget if None."""
        self.width = width or config.scheduler.token_budget
        self._num_rows = min(self.width, config.scheduler.max_num_seqs)
        self._block_size = config.cache.block_size
        self._num_windows = len(config.cache.window_blocks)
        self._layout = batch_layout(self.width, self._num_rows, 1 + self._num_windows)
        self._first = self._layout.first_words
        self._empty = np.zeros(self._layout.size, np.int32)
        views = self._layout.views(self._empty)
        views["rows"][:] = config.scheduler.max_num_seqs
        views["sample_rows"][:] = config.scheduler.max_num_seqs
        views["new_blocks"][:] = -1
        views["prompt_targets"][:] = -1
        if self._num_windows:
            views["begun_blocks"][:] = -1

    def pack(self, plan: StepPlan) -> np.ndarray:
        """Return the plan's words. Raises ValueError if the plan exceeds the shape."""
        chunks, num_tokens = plan.chunks, plan.num_tokens
        if num_tokens > self.width or max(len(chunks), plan.num_samples) > self._num_rows:
            raise ValueError(
                f"a plan of {num_tokens} tokens in {len(chunks)} chunks with {plan.num_samples} samples exceeds "
                f"{self.width} in {self._num_rows}"
            )
        words = self._empty.copy()  # a new array each time: the device may still read the last one
        if not chunks:
            return words
        # Few operations of NumPy: each takes microseconds after a step has filled the processor's caches with weights.
        n, first, lengths = len(chunks), self._first, [chunk.length for chunk in chunks]
        num_decodes = lengths.count(1)
        words[:5] = num_tokens, n, num_decodes, any(map(_wants_logprobs, chunks)), max(map(_sampling, chunks))
        words[5] = plan.num_samples
        ends, at = [*accumulate(lengths)], first["query_starts"] + 1
        words[at : at + n] = ends
        words[at + n : at + self._num_rows] = num_tokens
        at = first["context_lens"]
        words[at : at + n] = [chunk.end for chunk in chunks]
        at = first["rows"]
        words[at : at + n] = [_row(chunk) for chunk in chunks]
        self._pack_samples(plan, ends, words)
        at = first["tokens"]
        words[at : at + num_decodes] = [_token(chunk) for chunk in chunks[:num_decodes]]
        for index, chunk in enumerate(chunks):
            if index >= num_decodes:
                words[at + ends[index] - chunk.length : at + ends[index]] = _known_tokens(chunk)
            last, offset = divmod(chunk.end - 1, self._block_size)
            if offset < chunk.length:  # its last block begins with it
                words[first["new_blocks"] + index] = chunk.sequence.blocks.entry(last)
                if self._num_windows:
                    self._pack_begun(chunk, ends[index] - chunk.length, words)
            if chunk.sequence.params.prompt_logprobs is not None:
                begin = first["prompt_targets"] + ends[index] - chunk.length
                self._pack_targets(chunk, words[begin : begin + chunk.length])
        return words

    def _pack_samples(self, plan: StepPlan, ends: list[int], words: np.ndarray) -> None:
        """Pack where samples are taken: after the last known token of each chunk that samples, and after its drafts."""
        names, first, n = ("sample_at", "sample_rows", "sample_positions"), self._first, len(ends)
        if plan.num_samples == n and not plan.num_drafts:  # after the last token of each chunk
            for name, same, less in zip(names, ("query_starts", "rows", "context_lens"), (1, 0, 0), strict=True):
                words[first[name] : first[name] + n] = words[first[same] + less : first[same] + less + n] - less
            return
        samples = [
            (end - behind, _row(chunk), chunk.end - behind + 1)
            for chunk, end in zip(plan.chunks, ends, strict=True)
            for behind in range(chunk.num_samples, 0, -1)
        ]
        for name, values in zip(names, zip(*samples, strict=True), strict=False):
            words[first[name] : first[name] + len(values)] = values

    def _pack_begun(self, chunk: Chunk, first_token: int, words: np.ndarray) -> None:
        """Pack the blocks of the further kinds of cache that begin in a chunk, which is laid from ``first_token``."""
        size = self._block_size
        block, end = -(-chunk.start // size), -(-chunk.end // size)
        first = self._first["begun_blocks"] + first_token - chunk.start
        for kind, of_window in enumerate(chunk.sequence.blocks.windows):
            at = first + kind * self.width
            words[at + block * size : at + chunk.end : size] = of_window.ids(block, end)

    @staticmethod
    def _pack_targets(chunk: Chunk, targets: np.ndarray) -> None:
        sequence = chunk.sequence
        wanted = sequence.tokens[chunk.start + 1 : min(chunk.end + 1, sequence.num_prompt)]
        targets[: len(wanted)] = wanted


def unpack(words: Int32[Array, "W"], state: RowState, width: int, cache: CacheConfig) -> tuple[StepBatch, RowState]:
    """Return the batch of a packed plan of ``width`` tokens, and the state with the plan's new blocks."""
    S, B, num_blocks = state.last_tokens.shape[0], cache.block_size, cache.blocks_of_kinds
    packed = batch_layout(width, min(width, S), len(num_blocks)).split(words)
    starts, lens, rows = packed["query_starts"], packed["context_lens"], packed["rows"]
    begun = jnp.where(packed["new_blocks"] >= 0, rows, S)
    first_tables, *others = state.block_tables
    tables = [first_tables.at[begun, (lens - 1) // B].set(packed["new_blocks"], mode="drop")]
    index = jnp.arange(width)
    # The chunk of each token: how many chunks end at or before it. For padding it is empty or past the last.
    chunk = jnp.sum(index[:, None] >= starts[1:], axis=1, dtype=jnp.int32)
    real = index < packed["num_tokens"]
    chunk = jnp.where(real, chunk, 0)
    positions = jnp.where(real, lens[chunk] - starts[chunk + 1] + index, 0)
    token_rows = jnp.where(real, rows[chunk], S)
    for table, blocks in zip(others, packed.get("begun_blocks", ()), strict=True):
        begun = jnp.where(blocks >= 0, token_rows, S)
        tables.append(table.at[begun, positions // B].set(blocks, mode="drop"))
    held = [table.at[token_rows, positions // B].get(mode="fill", fill_value=0) for table in tables]
    tokens = packed["tokens"]
    fed = state.last_tokens.at[token_rows].get(mode="fill", fill_value=0)
    batch = StepBatch(
        tokens=jnp.where(tokens == LAST_SAMPLED, fed, tokens),
        positions=positions,
        slots=tuple(
            jnp.where(real, block * B + positions % B, N * B) for block, N in zip(held, num_blocks, strict=True)
        ),
        token_rows=token_rows,
        query_starts=starts,
        context_lens=lens,
        block_tables=tuple(
            _seen(table.at[rows].get(mode="clip"), lens - jnp.diff(starts), window, B)
            for table, window in zip(tables, (None, *cache.windows), strict=True)
        ),
        rows=rows,
        num_tokens=packed["num_tokens"],
        num_rows=packed["num_rows"],
        num_decodes=packed["num_decodes"],
        sample_at=packed["sample_at"],
        sample_rows=packed["sample_rows"],
        sample_positions=packed["sample_positions"],
        num_samples=packed["num_samples"],
        want_logprobs=packed["want_logprobs"] != 0,
        prompt_targets=packed["prompt_targets"],
    )
    return batch, replace(state, block_tables=tuple(tables))


def _seen(
    tables: Int32[Array, "R M"], chunk_starts: Int32[Array, "R"], window: int | None, block_size: int
) -> Int32[Array, "R M"]:
    """Return the block tables in which entries before a chunk's window repeat the first block of the window.

    Other sequences may have the blocks before it. Kernels may read them and give them no weight, which hides no
    infinity.
    """
    if window is None:
        return tables
    first = jnp.maximum(chunk_starts - (window - 1), 0) // block_size
    return jnp.where(
        jnp.arange(tables.shape[1]) < first[:, None], jnp.take_along_axis(tables, first[:, None], 1), tables
    )


def _sampling(chunk: Chunk) -> Sampling:
    return chunk.sequence.sampling if chunk.samples else Sampling.GREEDY


def _wants_logprobs(chunk: Chunk) -> bool:
    return chunk.samples and chunk.sequence.params.logprobs is not None


def _row(chunk: Chunk) -> int:
    row = chunk.sequence.row
    assert row is not None, "a plan's sequences run"
    return row


def _token(chunk: Chunk) -> int:
    tokens = chunk.sequence.tokens
    return tokens[chunk.start] if chunk.start < len(tokens) else LAST_SAMPLED


def _known_tokens(chunk: Chunk) -> list[int]:
    """Return the tokens of a longer chunk, which the host has: only a chunk of one can be of a pending token."""
    return [*chunk.sequence.tokens[chunk.start : chunk.start + chunk.num_known], *chunk.drafts]
