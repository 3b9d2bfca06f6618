"""A mixture-of-experts block, which takes the place of a layer's MLP, in one fixed shape.

Each token goes through some of the experts, which are gated MLPs (Shazeer et al., arXiv 1701.06538; the routers are
those of Mixtral, arXiv 2401.04088, Qwen2-MoE and gpt-oss). Tokens are sorted by expert, so that an expert multiplies
all its rows with one reading of its weights. No token is dropped, and experts that no token chose are not read. A
token's bits do not depend on the other tokens. Products are of its row alone, and the results of its experts are added
in the order of its own choices, in float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike, ordered_sum
from jaxgen.core.moe_config import MoEConfig
from jaxgen.kernels.choice import row_sum
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.linear import Linear, Shape
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.stacked_weight import StackedWeight
from jaxgen.models.walk import LayerContext


class MoE(nnx.Module):
    """residual + the weighted sum of a token's experts, and of the shared expert, if there is one."""

    def __init__(self, config: MoEConfig, width: int, *, dtype: str, rngs: nnx.Rngs, stack: Shape):
        self.config = config
        self.router = Linear(width, config.experts, bias=config.router_bias, dtype=dtype, rngs=rngs, stack=stack)
        self.experts = Experts(config, width, dtype=dtype, rngs=rngs, stack=stack)
        has_shared, has_gate = config.shared_inner is not None, config.shared_gate
        self.shared = SharedExpert(config, width, dtype=dtype, rngs=rngs, stack=stack) if has_shared else None
        self.shared_gate = Linear(width, 1, bias=False, dtype=dtype, rngs=rngs, stack=stack) if has_gate else None

    def __call__(
        self, x: Float[Array, "T D"], at: LayerContext, residual: Float[Array, "T D"] | None
    ) -> Float[Array, "T D"]:
        """Return the block's result, rounded to the dtype of x and then added to ``residual``, if any."""
        logits = self.router.in_float32(x, at.num_tokens)
        routing = route(self.config, logits, at.num_tokens)
        result = self.experts(x, routing, at.kernels)
        if self.shared is not None:
            shared = self.shared(x, at)
            if self.shared_gate is not None:
                shared *= jax.nn.sigmoid(self.shared_gate.in_float32(x, at.num_tokens))
            result += shared
        rounded = result.astype(x.dtype)
        return rounded if residual is None else residual + rounded


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


def route(config: MoEConfig, logits: Float[Array, "T E"], num_tokens: Int[ArrayLike, ""]) -> Routing:
    """Choose each token's experts by its float32 router logits; of equal ones the first.

    A softmax over all experts divided by the sum of the chosen is one over the chosen alone, and is computed as that.
    """
    T, E = logits.shape
    k = config.per_token
    # Without the barrier XLA would take the slice below out of a sort of all logits, ten times as slow.
    best, chosen = lax.optimization_barrier(lax.top_k(logits, k))
    weights = jnp.exp(best - best[:, :1])
    total = _sum_in_order(weights) if config.renormalise else _sum_of_all(jnp.exp(logits - best[:, :1]))
    return Routing(weights / total, *_sort(jnp.where(jnp.arange(T)[:, None] < num_tokens, chosen, E), E))


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
