"""A mixture-of-experts block, which takes the place of a layer's MLP, in one fixed shape.

Each token goes through some of the experts, which are gated MLPs (Shazeer et al., arXiv 1701.06538; the routers are
those of Mixtral, arXiv 2401.04088, Qwen2-MoE, gpt-oss and DeepSeek-V3). Tokens are sorted by expert, so that an expert
multiplies all its rows with one reading of its weights. No token is dropped, and experts that no token chose are not
read. A token's bits do not depend on the other tokens. Products are of its row alone, and the results of its experts
are added in the order of its own choices, in float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike, ordered_sum
from jaxgen.core.decoder_parts import NormConfig
from jaxgen.core.moe_config import MOE_NORMS, MoEConfig
from jaxgen.kernels.choice import row_sum
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.linear import Linear, Shape
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.norms import make_norm, normed
from jaxgen.models.rank_sum import sum_in_rank_order
from jaxgen.models.stacked_weight import StackedWeight
from jaxgen.models.walk import LayerContext


class MoE(nnx.Module):
    """residual + the weighted sum of a token's experts, and of the shared expert, if there is one.

    ``norm``: that of a layer's input, of which ``MoENorms`` are made where the block has norms of its own. ``divided``:
    each of several devices has some inner numbers of every expert, and adds the others' sums.
    """

    def __init__(
        self,
        config: MoEConfig,
        width: int,
        *,
        dtype: str,
        rngs: nnx.Rngs,
        stack: Shape,
        norm: NormConfig | None = None,
        divided: bool = False,
    ):
        self.config, self.divided = config, divided
        self.norms = None if norm is None or not config.norms else MoENorms(config, norm, width, dtype, stack)
        self.router = Linear(width, config.experts, bias=config.router_bias, dtype=dtype, rngs=rngs, stack=stack)
        self.correction = nnx.Param(jnp.zeros((*stack, config.experts))) if config.corrected else None
        self.experts = Experts(config, width, dtype=dtype, rngs=rngs, stack=stack)
        has_shared, has_gate = config.shared_inner is not None, config.shared_gate
        self.shared = SharedExpert(config, width, dtype=dtype, rngs=rngs, stack=stack) if has_shared else None
        self.shared_gate = Linear(width, 1, bias=False, dtype=dtype, rngs=rngs, stack=stack) if has_gate else None

    def __call__(
        self, x: Float[Array, "T D"], at: LayerContext, residual: Float[Array, "T D"] | None, *, joins: bool = False
    ) -> Float[Array, "T D"]:
        """Return the block's result, rounded to the dtype of x and then added to ``residual``, if any."""
        del joins  # sums of experts come after its last product
        if self.norms is not None:
            result = self._side_by_side(self.norms, x, at)
            return result if residual is None else residual + result
        logits = self.router.in_float32(x, at.num_tokens)
        correction = None if self.correction is None else self.correction[...]
        routing = route(self.config, logits, at.num_tokens, correction)
        result = self.experts(x, routing, at.kernels)
        if self.shared is not None:
            shared = self.shared(x, at)
            if self.shared_gate is not None:
                shared *= jax.nn.sigmoid(self.shared_gate.in_float32(x, at.num_tokens))
            result += shared
        rounded = sum_in_rank_order(result, x.dtype) if self.divided else result.astype(x.dtype)
        return rounded if residual is None else residual + rounded

    def _side_by_side(self, norms: "MoENorms", x: Float[Array, "T D"], at: LayerContext) -> Float[Array, "T D"]:
        """Return norm(shared(norm(x))) + norm(experts(norm(x))), each norm another."""
        assert self.shared is not None
        shared = self.shared(normed(norms.shared, x, at), at).astype(x.dtype)
        logits = self.router.in_float32(normed(norms.router, x, at), at.num_tokens) * x.shape[1] ** -0.5
        routing = route(self.config, logits, at.num_tokens)
        scales = norms.expert_scale[...].at[routing.experts[routing.places]].get(mode="clip")
        routing = routing._replace(weights=routing.weights * scales)
        experts = self.experts(normed(norms.experts, x, at), routing, at.kernels).astype(x.dtype)
        return normed(norms.shared_post, shared, at) + normed(norms.experts_post, experts, at)


class MoENorms(nnx.Module):
    """The norms of a block whose shared expert and experts stand side by side, and a scale of each expert."""

    def __init__(self, config: MoEConfig, norm: NormConfig, width: int, dtype: str, stack: Shape):
        self.shared, self.shared_post, self.router, self.experts, self.experts_post = (
            make_norm(norm, width, dtype=dtype, stack=stack) for _ in MOE_NORMS
        )
        self.expert_scale = nnx.Param(jnp.ones((*stack, config.experts), jnp.float32))


class Routing(NamedTuple):
    """The k experts of each token, the best first, and where its rows are among those of all tokens sorted by expert.

    Expert e has the rows from ``starts[e]`` to ``starts[e + 1]``, and row s is the row of token ``tokens[s]`` and
    expert ``experts[s]``. Rows from ``starts[E]`` on are tokens of padding.
    """

    weights: Float[Array, "T k"]
    places: Int[Array, "T k"]
    tokens: Int[Array, "S"]
    experts: Int[Array, "S"]
    starts: Int[Array, "E1"]


def route(
    config: MoEConfig,
    logits: Float[Array, "T E"],
    num_tokens: Int[ArrayLike, ""],
    correction: Float[Array, "E"] | None = None,
) -> Routing:
    """Choose each token's experts by its float32 router logits; of equal scores the first.

    ``correction``: what is added to scores for the choice alone, if the router has that.
    """
    T, E = logits.shape
    as_softmax = correction is None and config.scoring != "sigmoid"
    weights, chosen = _by_logits(config, logits) if as_softmax else _by_scores(config, logits, correction)
    if config.scale != 1.0:
        weights = weights * config.scale
    return Routing(weights, *_sort(jnp.where(jnp.arange(T)[:, None] < num_tokens, chosen, E), E))


def _by_logits(config: MoEConfig, logits: Float[Array, "T E"]) -> tuple[Float[Array, "T k"], Int[Array, "T k"]]:
    """Return weights by a softmax, and the experts of the highest logits, which have its highest scores.

    A softmax over all experts divided by the sum of the chosen is one over the chosen alone, and is computed as that.
    """
    best, chosen = _highest(_of_best_groups(config, logits), config.per_token)
    weights = jnp.exp(best - best[:, :1])
    total = _sum_in_order(weights) if config.renormalise else _sum_of_all(jnp.exp(logits - best[:, :1]))
    return weights / total, chosen


def _by_scores(
    config: MoEConfig, logits: Float[Array, "T E"], correction: Float[Array, "E"] | None
) -> tuple[Float[Array, "T k"], Int[Array, "T k"]]:
    """Return the chosen experts' scores as weights, and the experts of the highest corrected scores."""
    if config.scoring == "sigmoid":
        scores = jax.nn.sigmoid(logits)
    else:
        powers = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
        scores = powers / _sum_of_all(powers)
    corrected = scores if correction is None else scores + correction
    chosen = _highest(_of_best_groups(config, corrected), config.per_token)[1]
    weights = jnp.take_along_axis(scores, chosen, axis=1)
    return weights / (_sum_in_order(weights) + config.least_sum) if config.renormalise else weights, chosen


def _of_best_groups(config: MoEConfig, scores: Float[Array, "T E"]) -> Float[Array, "T E"]:
    """Return the scores by which experts are chosen: minus infinity of those outside of a token's best groups."""
    if config.groups == 1:
        return scores
    by_group = scores.reshape(len(scores), config.groups, -1)
    best = lax.top_k(by_group, 2 if config.corrected else 1)[0].sum(axis=-1)
    chosen = lax.top_k(best, config.best_groups)[1]
    allowed = jnp.any(chosen[:, :, None] == jnp.arange(config.groups), axis=1)
    return jnp.where(allowed[:, :, None], by_group, -jnp.inf).reshape(scores.shape)


def _highest(x: Float[Array, "T E"], k: int) -> tuple[Float[Array, "T k"], Int[Array, "T k"]]:
    # Without the barriers XLA would take a slice of the result out of a sort of all numbers, ten times as slow. One
    # barrier of both results fails a check of XLA's own in a program of several devices.
    best, chosen = lax.top_k(x, k)
    return lax.optimization_barrier(best), lax.optimization_barrier(chosen)


def _sort(owners: Int[Array, "T k"], num_experts: int) -> tuple[Array, Array, Array, Array]:
    """Return places, tokens, experts and starts of a Choice, where token t's choice i is ``owners[t, i]``.

    A token chooses an expert once at most. The last tokens, which are padding, have ``num_experts`` for all choices.
    Rows are counted, not sorted: on a GPU a sort of so few is dozens of steps that wait for each other.
    """
    T, k = owners.shape
    flat, rows = owners.reshape(-1), jnp.arange(T * k)
    experts = jnp.arange(num_experts)
    chosen = jnp.any(owners[:, :, None] == experts, axis=1)
    up_to = jnp.cumsum(chosen, axis=0, dtype=jnp.int32)
    starts = jnp.sum(jnp.where(experts < jnp.arange(num_experts + 1)[:, None], up_to[-1], 0), axis=1)
    earlier = jnp.take_along_axis(up_to, owners, axis=1, mode="clip") - 1
    places = jnp.where(owners < num_experts, starts[owners] + earlier, rows.reshape(T, k))
    order = jnp.zeros_like(rows).at[places.reshape(-1)].set(rows, unique_indices=True)
    return places, order // k, flat[order], starts


def _sum_in_order(x: Float[Array, "T k"]) -> Float[Array, "T 1"]:
    total = x[:, :1]
    for i in range(1, x.shape[1]):
        total += x[:, i : i + 1]
    return total


def _sum_of_all(x: Float[Array, "T E"]) -> Float[Array, "T 1"]:
    return lax.platform_dependent(x, cpu=row_sum, default=ordered_sum)


class Experts(nnx.Module):
    """The experts' gated MLPs, each down(activation(gate(x)) * up(x)); parameters have an axis of experts after the
    stack's."""

    def __init__(self, config: MoEConfig, width: int, *, dtype: str, rngs: nnx.Rngs, stack: Shape):
        self.config = config
        stack, bias = (*stack, config.experts), config.expert_bias
        self.gate_up = Linear(width, 2 * config.inner, bias=bias, dtype=dtype, rngs=rngs, stack=stack)
        self.down = Linear(config.inner, width, bias=bias, dtype=dtype, rngs=rngs, stack=stack)

    def __call__(self, x: Float[Array, "T D"], routing: Routing, kernels: Kernels) -> Float[Array, "T D"]:
        """Return the weighted sums of the tokens' experts in float32, added in the order of ``routing``."""
        gate_up = expert_product(x[routing.tokens], self.gate_up, routing.starts, kernels)
        if self.gate_up.bias is not None:
            gate_up += self.gate_up.bias[...].at[routing.experts].get(mode="clip").astype(jnp.float32)
        activation = self.config.activation
        inner = kernels.gated(gate_up, routing.starts[-1], activation=activation, dtype=x.dtype)
        rows = expert_product(inner, self.down, routing.starts, kernels)
        if self.down.bias is not None:
            rows += self.down.bias[...].at[routing.experts].get(mode="clip").astype(jnp.float32)
        total = routing.weights[:, :1] * rows[routing.places[:, 0]]
        for i in range(1, self.config.per_token):
            total += routing.weights[:, i : i + 1] * rows[routing.places[:, i]]
        return total


class SharedExpert(nnx.Module):
    """The gated MLP that all tokens go through."""

    def __init__(self, config: MoEConfig, width: int, *, dtype: str, rngs: nnx.Rngs, stack: Shape):
        inner = config.shared_inner
        assert inner is not None
        self.activation = config.activation
        self.gate_up = Linear(width, 2 * inner, bias=False, dtype=dtype, rngs=rngs, stack=stack)
        self.down = Linear(inner, width, bias=False, dtype=dtype, rngs=rngs, stack=stack)

    def __call__(self, x: Float[Array, "T D"], at: LayerContext) -> Float[Array, "T D"]:
        """Return the result in float32."""
        inner = self.gate_up.gated(x, at.num_tokens, at.kernels, self.activation)
        return self.down.in_float32(inner, at.num_tokens)


def expert_product(
    x: Float[Array, "S I"], linear: Linear, starts: Int[Array, "E1"], kernels: Kernels
) -> Float[Array, "S O"]:
    """Return x @ weight.T in float32 with the weight [E, O, I] of each row's expert, which has rows from ``starts[e]``.

    Rows after those of all experts hold nothing to read.
    """
    value: Any = linear.weight.get_value()
    if isinstance(value, KernelWeight):
        return value.expert_product(x, starts)
    weight = value if isinstance(value, StackedWeight) else StackedWeight(value[None], jnp.int32(0))
    product: Array = kernels.expert_product(x, weight.data, weight.layer, starts)
    return product
