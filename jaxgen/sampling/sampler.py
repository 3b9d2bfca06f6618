"""Choose tokens inside the step: pure functions of logits [R, V], R rows of V tokens, that treat each row by itself.

A row's token depends on its own logits, parameters, seed and position only, bit for bit. Sums over the vocabulary that
decide it are of integers, and no two rows share a random number. Nothing is sorted.

The rule, by which other programs can choose the same token from the same logits x of one row:

1. Penalties and bias, in float32 (``adjust_logits``). Then NaN counts as -inf and +inf as the largest float32. If
   temperature is 0 (below 2**-126), the token is the first of the greatest.
2. Unless top_k is 0, x below the k-th greatest becomes -inf.
3. Token i weighs ``w[i] = round(2**31 * exp((x[i] - max(x)) / temperature))``, in float32, halves to even. So
   probabilities are fixed-point numbers relative to the greatest. A token less probable than 2**-32 of the most
   probable one is never drawn. If ``w[i] < min_p * 2**31`` it becomes 0.
4. W is the sum of all w. Weights below t become 0. Here t is the greatest integer for which the weights of t or more
   add up to ``floor(W * floor(2**32 * top_p) / 2**32)`` or more, and to more than 0.
5. With W the sum of what is left, the token is the first whose running sum of weights exceeds ``floor(U * W / 2**64)``.
   U is 64 random bits, high word first: one block of Threefry-2x32 with 20 rounds, key (high, low) word of the seed,
   counter (0, position). It has 64 bits, because the 24 bits of a float32 uniform would never draw some tokens of
   probability below 2**-24, and draw others twice as often as they should be.
6. If W is 0 (every x is -inf), the token is 0.

Thresholds keep what ties with them.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32, UInt32

from jaxgen.arrays import ArrayLike, ordered_sum
from jaxgen.core.sampling_params import MAX_LOGPROBS
from jaxgen.sampling import exact_sum
from jaxgen.sampling.condition import Condition, either
from jaxgen.sampling.penalties import PenaltyState, UncountedTokens
from jaxgen.sampling.row_params import Needs, RowParams

_GROUP = 256
"""Size of the groups in which the vocabulary is summed, so that a draw reads only one of them."""
_ONE = 2.0**31
_MAX = float(np.finfo(np.float32).max)


def sample(
    logits: Float[Array, "R V"],
    params: RowParams,
    penalties: PenaltyState,
    rows: Int32[Array, "R"],
    positions: Int32[Array, "R"],
    needs: Needs | None = None,
    uncounted: UncountedTokens | None = None,
) -> Int32[Array, "R"]:
    """Return each row's token by the rule above.

    ``rows``: the rows of ``penalties`` that belong to the sequences, S for padding. ``positions``: the positions of the
    chosen tokens in their sequences. ``needs``: None: what the rows need. ``uncounted``: further tokens for penalties.
    """
    needs = Needs.of(params, positions, logits.shape[1]) if needs is None else needs
    adjusted = adjust_logits(logits.astype(jnp.float32), params, penalties, rows, positions, needs, uncounted)
    x = _finite_above(adjusted)
    greatest = jnp.max(x, axis=-1)
    greedy = _first(x == greatest[:, None])
    sampled = params.drawn

    def draw() -> Array:
        token, possible = _draw(x, greatest, params, positions, needs)
        return jnp.where(sampled & possible, token, greedy)

    return either(needs.drawn, draw, lambda: greedy)


def keep_allowed(
    logits: Float[Array, "R V"],
    allowed: Int32[Array, "S V32"],
    rows: Int32[Array, "R"],
    constrained: Int32[ArrayLike, "R"],
    needed: Condition | None = None,
) -> Float[Array, "R V"]:
    """Return the logits, with -inf in constrained rows for tokens that are not in ``allowed``.

    There, bit i of word w stands for token 32 * w + i. ``rows``: the rows of ``allowed`` that belong to the sequences.
    ``needed``: None: if any row is constrained.
    """

    def keep() -> Array:
        words = allowed.at[rows].get(mode="fill", fill_value=0)
        bits = (words[:, :, None] >> jnp.arange(32)) & 1
        may = bits.reshape(len(rows), -1)[:, : logits.shape[1]] == 1
        return jnp.where(may | (constrained == 0)[:, None], logits, -jnp.inf)

    return either(jnp.any(constrained != 0) if needed is None else needed, keep, lambda: logits)


def token_logprobs(
    logits: Float[Array, "R V"], tokens: Int32[Array, "R"], max_logprobs: int = MAX_LOGPROBS
) -> tuple[Float32[Array, "R"], Int32[Array, "R"], Int32[Array, "R L"], Float32[Array, "R L"]]:
    """Return natural-log probabilities of ``tokens``, their ranks among all V, and the L = max_logprobs most probable
    tokens with their log-probabilities.

    L is V if the vocabulary is smaller. The most probable tokens come first, and the first has rank 1; of equal ones,
    those of lower ids. NaN and +inf count as they do in ``sample``; impossible tokens have -inf.
    """
    x = _finite_above(logits.astype(jnp.float32))
    greatest = jnp.maximum(jnp.max(x, axis=-1), -_MAX)[:, None]
    log_mass = jnp.log(jax.lax.platform_dependent(jnp.exp(x - greatest), cpu=_sum, default=ordered_sum))

    def logprob(values: Array) -> Array:
        return jnp.where(values == -jnp.inf, -jnp.inf, values - greatest - log_mass)

    chosen = jnp.take_along_axis(x, tokens[:, None], axis=-1, mode="clip")
    index = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    before = (x > chosen) | ((x == chosen) & (index < tokens[:, None]))
    ranks = 1 + jnp.sum(before, axis=-1, dtype=jnp.int32)
    top_values, top_tokens = jax.lax.top_k(x, min(max_logprobs, x.shape[1]))
    return logprob(chosen)[:, 0], ranks, top_tokens, logprob(top_values)


def adjust_logits(
    x: Float32[Array, "R V"],
    params: RowParams,
    penalties: PenaltyState,
    rows: Int32[Array, "R"],
    positions: Int32[Array, "R"],
    needs: Needs | None = None,
    uncounted: UncountedTokens | None = None,
) -> Float32[Array, "R V"]:
    """Return logits after, in this order: repetition penalty, frequency and presence penalties, bias, masked tokens.

    The repetition penalty divides positive logits and multiplies the others, of tokens in prompt or output (Keskar et
    al., 2019, as in transformers). For tokens in the output, frequency * count and presence are subtracted. ``rows``,
    ``positions``, ``needs`` and ``uncounted`` as in ``sample``.
    """
    V = x.shape[1]
    needs = Needs.of(params, positions, V) if needs is None else needs

    def penalise() -> Array:
        counts = penalties.output_counts.at[rows].get(mode="fill", fill_value=0)
        counts = counts if uncounted is None else uncounted.add_to(counts)
        prompt_seen = penalties.prompt_seen.at[rows].get(mode="fill", fill_value=False)
        repetition = params.repetition[:, None]
        y = jnp.where((counts > 0) | prompt_seen, jnp.where(x > 0, x / repetition, x * repetition), x)
        y = y - params.frequency[:, None] * counts.astype(jnp.float32)
        return jnp.where(counts > 0, y - params.presence[:, None], y)

    def bias(x: Array) -> Array:
        row = jax.lax.broadcasted_iota(jnp.int32, params.bias_tokens.shape, 0)
        return x.at[row, params.bias_tokens].add(params.bias_values, mode="drop")

    def mask(x: Array) -> Array:
        row = jax.lax.broadcasted_iota(jnp.int32, params.masked_tokens.shape, 0)
        masked = jnp.where(early[:, None], params.masked_tokens, V)
        return x.at[row, masked].set(-jnp.inf, mode="drop")

    early = positions < params.masked_until
    # A neutral row, whose counts may be those of an earlier sequence, keeps its bits by factors of 1 and 0.
    y = either(needs.penalised, penalise, lambda: x)
    y = either(needs.biased, lambda: bias(y), lambda: y)
    return either(needs.masked, lambda: mask(y), lambda: y)


def _sum(x: Float32[Array, "R V"]) -> Float32[Array, "R 1"]:
    return jnp.sum(x, axis=-1, keepdims=True)


def _finite_above(x: Float32[Array, "R V"]) -> Float32[Array, "R V"]:
    return jnp.where(jnp.isnan(x), -jnp.inf, jnp.minimum(x, _MAX))


def _first(mask: Bool[Array, "R V"]) -> Int32[Array, "R"]:
    # Several times as fast as argmax on a CPU, where XLA does not vectorise reductions to pairs (value, index).
    index = jax.lax.broadcasted_iota(jnp.int32, mask.shape, 1)
    return jnp.min(jnp.where(mask, index, mask.shape[1]), axis=-1)


def _draw(
    x: Float32[Array, "R V"],
    greatest: Float32[Array, "R"],
    params: RowParams,
    positions: Int32[Array, "R"],
    needs: Needs,
) -> tuple[Int32[Array, "R"], Bool[Array, "R"]]:
    """Do steps 2 to 5: return each row's token, and whether there was any to draw from."""
    R, V = x.shape
    k = jnp.where(params.limited(V), params.top_k, V).astype(jnp.uint32)
    padded = jnp.pad(x, ((0, 0), (0, -V % _GROUP)), constant_values=-jnp.inf).reshape(R, -1, _GROUP)
    filtered = either(needs.limited, lambda: _keep_top_k(padded, k), lambda: padded)
    all_weights = _weights(filtered, greatest, params)
    w = either(needs.nucleus, lambda: _keep_top_p(all_weights, params.top_p), lambda: all_weights)
    return _pick(w, _random_bits(params.seed, positions))


def _weights(x: Float32[Array, "R G L"], greatest: Float32[Array, "R"], params: RowParams) -> UInt32[Array, "R G L"]:
    # A greedy row in a batch that samples: its weights are not used, but must not be computed from NaN.
    temperature = jnp.where(params.drawn, params.temperature, 1.0)
    distance = x - jnp.maximum(greatest, -_MAX)[:, None, None]
    w = jnp.round(jnp.exp(distance / temperature[:, None, None]) * _ONE).astype(jnp.uint32)
    least = jnp.ceil(params.min_p * _ONE).astype(jnp.uint32)
    return jnp.where(w >= least[:, None, None], w, 0)


def _keep_top_k(x: Float32[Array, "R G L"], k: UInt32[Array, "R"]) -> Float32[Array, "R G L"]:
    # Unsigned integers in the order of the floats of which they have the bits; -0.0 counts as 0.0.
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)
    keys = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))

    def holds(thresholds: Sequence[Array]) -> list[Array]:
        reaching = (jnp.where(keys >= t[:, None, None], jnp.uint32(1), jnp.uint32(0)) for t in thresholds)
        return [count >= k for count in exact_sum.fused_sums(*reaching, axes=(1, 2))]

    return jnp.where(keys >= _greatest(holds, x.shape[0])[:, None, None], x, -jnp.inf)


def _keep_top_p(w: UInt32[Array, "R G L"], top_p: Float32[ArrayLike, "R"]) -> UInt32[Array, "R G L"]:
    def masses(*weights: Array) -> list[exact_sum.Limbs]:
        return [exact_sum.total(groups) for groups in exact_sum.word_sums(*weights)]

    (mass,) = masses(w)
    whole = jnp.floor(top_p)
    fraction = exact_sum.from_words(whole.astype(jnp.uint32), ((top_p - whole) * 2.0**32).astype(jnp.uint32))
    target = exact_sum.multiply(mass, fraction, drop=2)

    def holds(thresholds: Sequence[Array]) -> list[Array]:
        reaching = masses(*(jnp.where(w >= t[:, None, None], w, 0) for t in thresholds))
        return [exact_sum.at_least(mass, target) & ~exact_sum.is_zero(mass) for mass in reaching]

    return jnp.where(w >= _greatest(holds, w.shape[0])[:, None, None], w, 0)


def _greatest(holds: Callable[[Sequence[Array]], Sequence[Array]], num_rows: int) -> UInt32[Array, "R"]:
    """Return for each row the greatest 32-bit t that ``holds``, or 0. If a t holds, all smaller ones must hold.

    The search goes from the highest bit down, two bits, and so three thresholds, at a time.
    """

    def two_bits(i: Array, t: Array) -> Array:
        step = jnp.uint32(1) << (30 - 2 * i).astype(jnp.uint32)
        for held in holds([t + step, t + 2 * step, t + 3 * step]):
            t = t + jnp.where(held, step, jnp.uint32(0))
        return t

    greatest: Array = jax.lax.fori_loop(0, 16, two_bits, jnp.zeros(num_rows, jnp.uint32))
    return greatest


def _random_bits(seed: UInt32[ArrayLike, "R 2"], positions: Int32[Array, "R"]) -> exact_sum.Limbs:
    keys = jax.random.wrap_key_data(seed, impl="threefry2x32")
    words = jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, positions))
    return exact_sum.from_words(words[:, 0], words[:, 1])


def _pick(w: UInt32[Array, "R G L"], random_bits: exact_sum.Limbs) -> tuple[Int32[Array, "R"], Bool[Array, "R"]]:
    """Do step 5: find the group that contains the drawn point, then the token in it."""

    def column(number: exact_sum.Limbs) -> exact_sum.Limbs:
        a, b, c, d = (limb[:, None] for limb in number)
        return a, b, c, d

    (groups,) = exact_sum.word_sums(w)
    mass = exact_sum.total(groups)
    point = column(exact_sum.multiply(random_bits, mass, drop=4))
    group = jnp.sum(exact_sum.at_least(point, exact_sum.running_total(groups)), axis=-1, dtype=jnp.int32)
    earlier = jax.lax.broadcasted_iota(jnp.int32, w.shape[:2], 1) < group[:, None]
    a, b, c, d = (jnp.where(earlier, limb, 0) for limb in groups)
    inside = jnp.take_along_axis(w, group[:, None, None], axis=1, mode="clip")[:, 0]
    running = exact_sum.add(column(exact_sum.total((a, b, c, d))), exact_sum.running_word_sum(inside))
    token = group * _GROUP + jnp.sum(exact_sum.at_least(point, running), axis=-1, dtype=jnp.int32)
    return token, ~exact_sum.is_zero(mass)
