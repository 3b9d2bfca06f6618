"""A step of random rows in the shapes of served steps, whose attention is compared with float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Num

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig, llama_config
from jaxgen.core.decoder_parts import AttentionConfig, RopeConfig
from jaxgen.kernels.gpu_proof import PROOF_TOLERANCE, cache_of_codes, stands_for
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.verdict import ServedShapes
from jaxgen.models.attention import attend, plan_attention
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.positions import Positional
from jaxgen.models.walk import LayerContext
from jaxgen.runner.packer import batch_layout
from jaxgen.runner.row_state import RowState, init_rows
from jaxgen.runner.step import begin
from jaxgen.runner.step_layout import StepLayout

LAYERS = 2
MOST_DECODES = 24
COUNTS = 1, 64, 256
"""Numbers of tokens in a step, with those of a full one."""
COMPARED = 128
"""Number of prompt tokens that are compared; all tokens must be finite."""
CONTEXTS = (1, 2, 63, 64, 65, 511, 512, 513, 1100, 700)
"""Context lengths of decodes, in turn: near the ends of blocks and of the pieces that kernels read together."""
EARLIER = 600
"""Tokens of a prompt that earlier steps computed."""
LONGEST = 4700
"""Context of one decode and of one prompt: more pieces than kernels combine together. Longer with a large window."""
SOFT_CAP = 1.5
"""Of scores, where the model has one: so small that the scores of random numbers come near it."""


def model_of(shapes: ServedShapes) -> DecoderConfig:
    """Return a small model with this attention, in the first of its windows."""
    config = llama_config(
        vocab_size=32,
        hidden_size=shapes.heads * shapes.head_dim,
        intermediate_size=32,
        num_layers=LAYERS,
        num_heads=shapes.heads,
        num_kv_heads=shapes.kv_heads,
        head_dim=shapes.head_dim,
        max_position=shapes.max_model_len,
        dtype=shapes.dtype,
        window=shapes.windows[0],
        norm_eps=1e-5,
        rope=RopeConfig(),
    )
    soft_cap = SOFT_CAP if shapes.soft_cap else None
    attention = AttentionConfig(soft_cap=soft_cap, sinks=shapes.sinks)
    return replace(config, attention=attention, kv_dtype=shapes.kv_dtype)


@dataclass(frozen=True)
class Row:
    """A chunk: the step computes the last ``length`` tokens of a context of ``context`` tokens."""

    length: int
    context: int

    @property
    def start(self) -> int:
        return self.context - self.length


def rows_of_step(shapes: ServedShapes, budget: int) -> list[Row]:
    """Return decodes, and prompts that fill the rest of the step, as far as there are rows for both."""
    longest, most = shapes.max_model_len, shapes.max_num_seqs
    decodes = min(MOST_DECODES, max(1, most // 2))
    long = max(LONGEST, (shapes.window or 0) + EARLIER)
    contexts = long, *(CONTEXTS[i % len(CONTEXTS)] for i in range(decodes - 1))
    rows = [Row(1, min(context, longest)) for context in contexts]
    left = budget - decodes
    while left > 0 and len(rows) < most:
        first = len(rows) == decodes
        length = min(-(-2 * left // 3) if first else left, longest)
        rows.append(Row(length, min(max(length + EARLIER, long if first else 0), longest)))
        left -= length
    return sorted(rows, key=lambda row: row.length > 1)  # a step has its decodes first


class Inputs(NamedTuple):
    """Random inputs of a step, the blocks ``ids`` of each row, and K and V [L, S, K, D] of each row's whole context.

    ``sinks``: minus infinity, which has no effect, of each layer's first head, and where the model has none.
    """

    ids: list[np.ndarray]
    q: Float[np.ndarray, "L T H D"]
    k: list[np.ndarray]
    v: list[np.ndarray]
    sinks: Float[np.ndarray, "L H"]

    @classmethod
    def random(cls, rows: list[Row], shapes: ServedShapes, budget: int) -> "Inputs":
        """Return random inputs, with blocks in a random order; there is one block more than the rows need."""
        generator = np.random.default_rng(0)
        blocks = [math.ceil(row.context / shapes.block_size) for row in rows]
        ids = np.split(generator.permutation(sum(blocks) + 1)[:-1], np.cumsum(blocks)[:-1])
        head = shapes.kv_heads, shapes.head_dim
        k, v = ([_rounded(generator, (LAYERS, row.context, *head), shapes.dtype) for row in rows] for _ in range(2))
        q = _rounded(generator, (LAYERS, budget, shapes.heads, shapes.head_dim), shapes.dtype)
        sinks = np.full((LAYERS, shapes.heads), -np.inf, np.float32)
        if shapes.sinks:
            sinks[:, 1:] = generator.standard_normal((LAYERS, shapes.heads - 1), np.float32)
        return cls(ids, q, k, v, sinks)

    def new(self, rows: list[Row], budget: int) -> list[Float[np.ndarray, "L T K D"]]:
        """Return K and V of a step's tokens, which are all or the first tokens of these rows."""
        _, _, *head = self.k[0].shape
        result = [np.zeros((LAYERS, budget, *head), self.q.dtype) for _ in range(2)]
        for target, source in zip(result, (self.k, self.v), strict=True):
            given = [of_row[:, row.start : row.context] for row, of_row in zip(rows, source, strict=False)]
            together = np.concatenate(given, axis=1)
            target[:, : together.shape[1]] = together
        return result


def check_steps(kernels: Kernels, model: DecoderConfig, shapes: ServedShapes) -> None:
    """Write and attend as steps do in each layer, in a program of each of the token budgets.

    Raises AssertionError if the outputs of the widest program are wrong or differ the next time, or if a token has
    other bits in a narrower program, or in a step of fewer tokens.
    """
    widest, *_ = budgets = sorted(shapes.token_budgets, reverse=True)
    rows = rows_of_step(replace(shapes, max_num_seqs=min(shapes.max_num_seqs, widest)), widest)
    inputs = Inputs.random(rows, shapes, widest)
    run = _program(kernels, model, shapes, widest, rows, inputs)
    whole, again = run(rows), run(rows)
    assert np.isfinite(whole.astype(np.float32)).all(), f"a step of {widest} tokens gives numbers that are not finite"
    assert np.array_equal(whole, again), f"a step of {widest} tokens gives other bits again"
    _compare(whole, rows, inputs, shapes)
    for budget in budgets:
        if budget != widest:
            run = _program(kernels, model, shapes, budget, rows, inputs)
        for count in sorted({min(count, budget) for count in (*COUNTS, budget)}, reverse=True):
            some = run(_first_tokens(rows, count))
            assert np.array_equal(some, whole[:, : some.shape[1]]), (
                f"attention has other bits among {count} tokens in a step of {budget}"
            )


def _first_tokens(rows: list[Row], count: int) -> list[Row]:
    """Return the rows of the first ``count`` tokens of a step."""
    result = []
    for row in rows:
        if count:
            length = min(row.length, count)
            result.append(Row(length, row.start + length))
            count -= length
    return result


def _program(
    kernels: Kernels, model: DecoderConfig, shapes: ServedShapes, budget: int, rows: list[Row], inputs: Inputs
) -> Callable[[list[Row]], np.ndarray]:
    """Return a function of rows, all or the first tokens of ``rows``, that runs a step of ``budget`` tokens."""
    shapes = replace(shapes, max_num_seqs=min(shapes.max_num_seqs, budget))
    cache = KVCache((_earlier(rows, inputs, shapes),), kernels)
    layout = StepLayout(model, _config(shapes, len(cache.data)), budget)
    step = jax.jit(_make_step(layout), donate_argnums=0)
    state = _state(layout, inputs.ids)

    def run(some: list[Row]) -> np.ndarray:
        nonlocal cache
        words = _words(some, budget, shapes.max_num_seqs)
        cache, outputs = step(cache, state, words, inputs.q[:, :budget], *inputs.new(some, budget), inputs.sinks)
        return np.asarray(outputs)[:, : sum(row.length for row in some)]

    return run


def _config(shapes: ServedShapes, num_blocks: int) -> EngineConfig:
    return EngineConfig(
        CacheConfig(shapes.block_size, num_blocks),
        SchedulerConfig(shapes.max_num_seqs, shapes.max_num_seqs, shapes.max_model_len),
        seed=0,
        max_logit_bias=1,
    )


def _state(layout: StepLayout, ids: list[np.ndarray]) -> RowState:
    """Return a RowState with the rows' block tables."""
    state = init_rows(layout.config, layout.vocab_size)
    tables = np.zeros(state.block_tables[0].shape, np.int32)
    for row_ids, table in zip(ids, tables, strict=False):
        table[: len(row_ids)] = row_ids
    return replace(state, block_tables=(jnp.asarray(tables),))


def _make_step(layout: StepLayout) -> Any:
    model = layout.model
    assert isinstance(model, DecoderConfig)

    def step(
        cache: KVCache,
        state: RowState,
        words: Int32[Array, "W"],
        q: Float[Array, "L T H D"],
        k: Float[Array, "L T K D"],
        v: Float[Array, "L T K D"],
        sinks: Float[Array, "L H"],
    ) -> tuple[KVCache, Float[Array, "L T H D"]]:
        _, batch = begin(state, words, layout)
        batch = plan_attention(model, cache, batch)
        outputs, window = [], model.widest_window
        for layer in range(LAYERS):
            at = LayerContext(batch, Positional(), jnp.int32(layer), 0, jnp.int32(layer), window, cache.kernels)
            cache = cache.write(at.kind, at.place, k[layer], v[layer], at.slots)
            outputs.append(attend(model, q[layer], cache, at, sinks[layer] if model.attention.sinks else None))
        return cache, jnp.stack(outputs)

    return step


def _words(rows: list[Row], budget: int, max_num_seqs: int) -> np.ndarray:
    """Return the packed plan of these rows; the parts that attention does not read are as in an empty plan."""
    layout = batch_layout(budget, max_num_seqs)
    words = np.zeros(layout.size, np.int32)
    views, lengths = layout.views(words), [row.length for row in rows]
    words[:4] = sum(lengths), len(rows), lengths.count(1), 0
    views["query_starts"][:] = np.pad(np.cumsum([0, *lengths]), (0, max_num_seqs - len(rows)), mode="edge")
    views["context_lens"][: len(rows)] = [row.context for row in rows]
    views["rows"][:] = max_num_seqs
    views["rows"][: len(rows)] = range(len(rows))
    views["sample_rows"][:] = max_num_seqs
    views["new_blocks"][:] = -1
    views["prompt_targets"][:] = -1
    return words


def _earlier(rows: list[Row], inputs: Inputs, shapes: ServedShapes) -> Num[Array, "N L 2 K B W"]:
    """Return the cache before the step: NaN in blocks without an owner, and in slots that are not written yet."""
    (_, _, K, D), size = inputs.k[0].shape, shapes.block_size
    cache = np.full((sum(map(len, inputs.ids)) + 1, LAYERS, 2, K, size, D), np.nan, inputs.q.dtype)
    for row, ids, keys, values in zip(rows, inputs.ids, inputs.k, inputs.v, strict=True):
        token = np.arange(row.start)
        for which, source in enumerate((keys, values)):
            cache[ids[token // size], :, which, :, token % size] = source[:, token].swapaxes(0, 1)
    return jnp.asarray(cache) if shapes.codes is None else cache_of_codes(cache, shapes.codes)


def _compare(got: np.ndarray, rows: list[Row], inputs: Inputs, shapes: ServedShapes) -> None:
    """Compare all decodes and some prompt tokens with attention computed from its definition in float64."""
    start, prompts = 0, max(1, sum(row.length > 1 for row in rows))
    for row, keys, values in zip(rows, inputs.k, inputs.v, strict=True):
        offsets = np.unique(np.linspace(0, row.length - 1, max(2, COMPARED // prompts)).astype(int)).tolist()
        read = [x if shapes.codes is None else stands_for(x, shapes.codes) for x in (keys, values)]
        for layer in range(LAYERS):
            k, v = (x[layer].astype(np.float64) for x in read)
            wide = k.transpose(1, 2, 0), v.swapaxes(0, 1)
            for offset in offsets:
                position = row.start + offset
                want = _attention(inputs.q[layer, start + offset], *wide, inputs.sinks[layer], position, shapes)
                error = np.abs(got[layer, start + offset].astype(np.float64) - want).max()
                assert error <= PROOF_TOLERANCE[shapes.dtype], (
                    f"attention of token {position} in a row of {row.length} is wrong by {error:.3g} in {shapes.dtype}"
                )
        start += row.length


def _attention(
    query: Float[np.ndarray, "H D"],
    keys: Float[np.ndarray, "K D S"],
    values: Float[np.ndarray, "K S D"],
    sinks: Float[np.ndarray, "H"],
    position: int,
    shapes: ServedShapes,
) -> Float[np.ndarray, "H D"]:
    """Return the attention of one token, in float64."""
    seen = slice(0 if shapes.window is None else max(0, position - shapes.window + 1), position + 1)
    heads, size = query.shape
    grouped = query.astype(np.float64).reshape(len(keys), -1, size) * size**-0.5
    scores = grouped @ keys[:, :, seen]
    if shapes.soft_cap:
        scores = SOFT_CAP * np.tanh(scores / SOFT_CAP)
    sink = sinks.astype(np.float64).reshape(*scores.shape[:2], 1)
    highest = np.maximum(scores.max(axis=-1, keepdims=True), sink)
    weights = np.exp(scores - highest)
    out = (weights / (weights.sum(axis=-1, keepdims=True) + np.exp(sink - highest))) @ values[:, seen]
    return out.reshape(heads, size)


def _rounded(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return generator.standard_normal(shape, np.float32).astype(jnp.dtype(dtype))
