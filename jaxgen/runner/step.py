"""The jitted step, of fixed shape: a program computes batches of any content."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.sampling_params import MAX_LOGPROBS
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.model import Graph, Model, PackedParams, bind
from jaxgen.runner.drafts import StepDrafts
from jaxgen.runner.packer import unpack
from jaxgen.runner.row_state import RowState
from jaxgen.runner.step_layout import StepLayout
from jaxgen.sampling.condition import Condition, either
from jaxgen.sampling.penalties import UncountedTokens, count_output
from jaxgen.sampling.row_params import Needs, RowParams
from jaxgen.sampling.sampler import keep_allowed, sample, token_logprobs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Logprobs:
    """Natural-log probabilities of the raw model at n positions: of one token each, and of the most probable tokens.

    ``ranks``: the rank of each chosen token; the most probable token has rank 1.
    """

    chosen: Float[ArrayLike, "n"]
    ranks: Int[ArrayLike, "n"]
    top_tokens: Int[ArrayLike, "n P"]
    top_values: Float[ArrayLike, "n P"]

    @classmethod
    def zeros(cls, n: int, vocab_size: int) -> "Logprobs":
        best = min(MAX_LOGPROBS, vocab_size)
        return cls(jnp.zeros(n), jnp.zeros(n, jnp.int32), jnp.zeros((n, best), jnp.int32), jnp.zeros((n, best)))

    def map(self, function: Callable[..., Array], *others: "Logprobs") -> "Logprobs":
        """Return ``function`` applied to each array and the same arrays of ``others``."""
        mapped: Logprobs = jax.tree.map(function, self, *others)
        return mapped


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepOutput:
    """Output of a step, by sample; padding is undefined."""

    tokens: Int[ArrayLike, "R"]
    logprobs: Logprobs
    """Log-probabilities of ``tokens``; zeros unless the batch wants them."""
    prompt_logprobs: Logprobs
    """Log-probabilities of ``batch.prompt_targets``, one entry per token; zeros where there is no target."""
    hidden: Float[ArrayLike, "T D"]
    """Final hidden states of the batch's tokens, which the host reads only to pool them; undefined for padding."""


PIECE_LOGITS = 2**18
"""Logits that are sampled at once by a program for CPUs: 1 MiB."""
PROMPT_LOGITS, LEAST_TILE = 2**21, 8
"""Logits of prompts that such a program makes at once, and the fewest rows of them, if there are enough. It has three
arrays of them, 24 MiB: temporaries of more than 32 MiB would go back to the system after each step."""
Piece = Callable[[Array], Array]
"""Takes a few rows of an array."""
Step = Callable[
    [PackedParams, KVCache, RowState, Int[Array, "W"], Float[Array, "R V"]],
    tuple[KVCache, RowState, Float[Array, "R V"], StepOutput],
]


def make_step(graph: Graph, layout: StepLayout) -> Step:
    """Return the step of one model, from (params, kv_cache, rows, words of a plan, products_buffer) to (kv_cache, rows,
    products_buffer, output).

    Pure; meant to be jitted with the cache, the rows and the buffer donated. The buffer is memory for the head's
    products: what it holds is not read, and what is returned is the buffer of the next step. Optional work (penalties,
    filters, draws, log-probabilities) is inside ``lax.cond``, so it needs no second program. A row's sampled token
    stays in ``rows`` and can be the next step's input before the host has read it, unless it had drafts.
    """

    def step(
        params: PackedParams,
        cache: KVCache,
        rows: RowState,
        words: Int[Array, "W"],
        products_buffer: Float[Array, "R V"],
    ) -> tuple[KVCache, RowState, Float[Array, "R V"], StepOutput]:
        del products_buffer
        model = bind(graph, params)
        rows, batch = begin(rows, words, layout)
        hidden, cache = model(batch, cache)
        rows, products, output = end(model, hidden, rows, batch, layout)
        return cache, rows, products, output

    return step


def begin(
    rows: RowState, words: Int[Array, "W"], layout: StepLayout, counted: Condition | None = None
) -> tuple[RowState, StepBatch]:
    """Return the rows with the new blocks of decodes and this step's generated tokens counted, and the plan's batch.

    ``counted``: whether a row counts tokens for penalties; None: the program finds that.
    """
    batch, rows = unpack(words, rows, layout.width, layout.config.cache)
    padding = layout.config.scheduler.max_num_seqs
    token_rows = StepDrafts.of(batch).known_rows(padding) if layout.has_drafts else batch.token_rows
    return count_tokens(rows, layout, batch.tokens, token_rows, batch.positions, counted), batch


def end(
    model: Model, hidden: Float[Array, "T D"], rows: RowState, batch: StepBatch, layout: StepLayout
) -> tuple[RowState, Float[Array, "R V"], StepOutput]:
    """Sample tokens from the final hidden states.

    Returns the rows with their tokens, the ``sample_products``, and the output.
    """
    products, vocab_size = sample_products(model, hidden, batch), layout.vocab_size
    R, T, drafts = layout.num_rows, layout.width, StepDrafts.of(batch) if layout.has_drafts else None
    tile = min(R, T, max(PROMPT_LOGITS // vocab_size, LEAST_TILE))

    def choose_some(piece: Piece) -> Int[Array, "n"]:
        logits = model.logits(piece(products))
        uncounted = None if drafts is None else drafts.before(piece)
        places = piece(batch.sample_rows), piece(batch.sample_positions)
        return chosen_tokens(logits, rows, layout, *places, uncounted=uncounted)

    def logprobs_of_some(piece: Piece) -> Logprobs:
        return Logprobs(*token_logprobs(model.logits(piece(products)), piece(tokens)))

    tokens = in_pieces(choose_some, jnp.zeros(R, jnp.int32), batch.num_samples, vocab_size)
    if drafts is not None:
        of_rows = jnp.where(drafts.accepted(tokens), batch.sample_rows, layout.config.scheduler.max_num_seqs)
        rows = count_tokens(rows, layout, drafts.tokens, of_rows, batch.sample_positions - 1)
    rows = rows.with_sampled(batch.sample_rows, tokens)
    none = Logprobs.zeros(R, vocab_size)
    logprobs = lax.cond(
        batch.want_logprobs, lambda: in_pieces(logprobs_of_some, none, batch.num_samples, vocab_size), lambda: none
    )
    prompt_logprobs = lax.cond(
        jnp.any(batch.prompt_targets >= 0),
        lambda: prompt_logprobs_of(model, hidden, batch.prompt_targets, vocab_size, tile=tile),
        lambda: Logprobs.zeros(T, vocab_size),
    )
    return rows, products, StepOutput(tokens, logprobs, prompt_logprobs, hidden)


def in_pieces[Found](
    compute: Callable[[Piece], Found], empty: Found, num_rows: Int[ArrayLike, ""], vocab_size: int
) -> Found:
    """Return ``empty`` with the values of the first ``num_rows`` rows, which ``compute`` returns for a few at a time.

    A piece has PIECE_LOGITS logits, or one row if that has more: padding costs nothing, and a piece fits in a cache.
    """
    R = len(jax.tree.leaves(empty)[0])
    n = min(max(PIECE_LOGITS // vocab_size, 1), R)

    def body(i: Int[Array, ""], values: Found) -> Found:
        start = i * n  # The last piece may begin earlier: slices are moved to lie within the array.
        new = compute(lambda x: lax.dynamic_slice_in_dim(x, start, n))
        return jax.tree.map(lambda all_, some: lax.dynamic_update_slice_in_dim(all_, some, start, axis=0), values, new)

    return lax.fori_loop(0, (num_rows + n - 1) // n, body, empty)


def sample_products(model: Model, hidden: Float[Array, "T D"], batch: StepBatch) -> Float[Array, "R V"]:
    """Return the head's products of each sample: ``model.logits`` makes its logits of them."""
    return model.head_products(hidden[batch.sample_at], batch.num_samples)


def chosen_tokens(
    logits: Float[Array, "n V"],
    rows: RowState,
    layout: StepLayout,
    of_rows: Int[Array, "n"],
    positions: Int[Array, "n"],
    needs: Needs | None = None,
    uncounted: UncountedTokens | None = None,
) -> Int[Array, "n"]:
    """Return the sampled tokens of ``of_rows``, at ``positions`` of their sequences.

    ``needs``: None: the program finds what these rows need. ``uncounted``: as in ``sample``.
    """
    params = RowParams(**layout.row_params.split(rows.params[of_rows]))
    needed = None if needs is None else needs.constrained
    possible = keep_allowed(logits, rows.allowed, of_rows, params.constrained, needed)
    return sample(possible, params, rows.penalties, of_rows, positions, needs, uncounted)


def count_tokens(
    rows: RowState,
    layout: StepLayout,
    tokens: Int[Array, "n"],
    of_rows: Int[Array, "n"],
    positions: Int[Array, "n"],
    needed: Condition | None = None,
) -> RowState:
    """Return the rows with the generated ones of these tokens counted for penalties.

    ``of_rows``: S for padding. ``needed``: None: if any counts.
    """
    S = rows.last_tokens.shape[0]
    params = RowParams(**layout.row_params.split(rows.params))
    counts = params.penalised[of_rows] & (positions >= params.counted_from[of_rows])
    counted_rows = jnp.where(counts, of_rows, S)
    return replace(rows, penalties=count_output(rows.penalties, tokens, counted_rows, needed))


def prompt_logprobs_of(
    model: Model,
    hidden: Float[Array, "T D"],
    targets: Int[Array, "T"],
    vocab_size: int,
    *,
    tile: int,
    skip: bool = True,
) -> Logprobs:
    """Return the log-probabilities of ``targets``, computed in tiles so that no [T, V] array is made.

    ``skip``: leave out tiles without targets, for which the program needs a branch.
    """
    T = len(targets)
    padded = -(-T // tile) * tile
    hidden = jnp.pad(hidden, ((0, padded - T), (0, 0)))
    targets = jnp.pad(targets, (0, padded - T), constant_values=-1)

    def compute(start: Int[Array, ""]) -> Logprobs:
        products = model.head_products(lax.dynamic_slice_in_dim(hidden, start, tile), jnp.int32(tile))
        logits = model.logits(products)
        wanted = lax.dynamic_slice_in_dim(targets, start, tile)
        return Logprobs(*token_logprobs(logits, jnp.maximum(wanted, 0)))

    def body(i: Int[Array, ""], logprobs: Logprobs) -> Logprobs:
        start = i * tile
        wanted = jnp.any(lax.dynamic_slice_in_dim(targets, start, tile) >= 0) if skip else True
        piece = either(wanted, lambda: compute(start), lambda: Logprobs.zeros(tile, vocab_size))
        return logprobs.map(lambda all_, new: lax.dynamic_update_slice_in_dim(all_, new, start, axis=0), piece)

    logprobs = lax.fori_loop(0, padded // tile, body, Logprobs.zeros(padded, vocab_size))
    return logprobs.map(lambda x: x[:T])
