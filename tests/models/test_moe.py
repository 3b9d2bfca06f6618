"""The mixture-of-experts block: what it computes, against float64 token by token, and whose bits a token has."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf, expit, softmax

from jaxgen.core.moe_config import MoEConfig
from jaxgen.kernels import choice
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.batch import BlockTokens
from jaxgen.models.layer_pattern import alike
from jaxgen.models.layer_stack import fold_layers
from jaxgen.models.linear import Matrix
from jaxgen.models.moe import MoE, route
from jaxgen.models.packed_weight import PackedWeight
from jaxgen.models.placement import place_matrix
from jaxgen.models.positions import Positional
from jaxgen.models.separate_weights import SeparateWeights
from jaxgen.models.stacked_weight import StackedWeight
from jaxgen.models.walk import LayerContext
from tests.support.native import native

WIDTH, LAYERS, T = 40, 2, 24
MIXTRAL = MoEConfig(experts=6, per_token=2, inner=20)
GPT_OSS = MoEConfig(
    experts=6,
    per_token=3,
    inner=20,
    scoring="softmax_after_topk",
    router_bias=True,
    expert_bias=True,
    activation="swiglu_clipped",
)
QWEN2 = MoEConfig(experts=7, per_token=4, inner=20, renormalise=False, shared_inner=28, shared_gate=True)
SIGMOID = MoEConfig(
    experts=8,
    per_token=3,
    groups=4,
    best_groups=2,
    inner=20,
    scoring="sigmoid",
    corrected=True,
    least_sum=1e-6,
    scale=1.5,
    activation="gelu_tanh",
    expert_bias=True,
)
CONFIGS = {
    "mixtral": MIXTRAL,
    "qwen2": QWEN2,
    "gpt-oss": GPT_OSS,
    "sigmoid": SIGMOID,
    "all experts": MoEConfig(experts=5, per_token=5, inner=20, renormalise=False),
    "one expert": MoEConfig(experts=1, per_token=1, inner=20, shared_inner=12),
    "gelu": MoEConfig(
        experts=3, per_token=1, inner=20, activation="gelu", router_bias=True, corrected=True, renormalise=False
    ),
}
TOLERANCE = {"float32": 2e-6, "bfloat16": 0.01}
"""Of a token's largest result; in bfloat16 the experts' inner values and each layer's sum are rounded."""
Params = dict[str, np.ndarray]


def native_kernels() -> Kernels:
    return choice.native(native())


def reference() -> Kernels:
    return replace(REFERENCE, name="XLA")


def reference_gpu() -> Kernels:
    return replace(REFERENCE_GPU, name="XLA, layers apart")


SETS: list[Any] = [pytest.param(make, id=make.__name__) for make in (reference, reference_gpu, native_kernels)]
KINDS = {"XLA": StackedWeight, "XLA, layers apart": SeparateWeights, "native": PackedWeight}
"""Layouts of the experts' weights, by the name of the kernels."""
EXPERTS = {"experts.gate_up.weight", "experts.down.weight"}


def draw(config: MoEConfig, dtype: str) -> tuple[Any, dict[str, tuple[np.ndarray, bool]]]:
    """The module without values, and random ones, so large that routers choose and activations bend; and whether they
    are matrices."""
    graph, state = nnx.split(nnx.eval_shape(lambda: MoE(config, WIDTH, dtype=dtype, rngs=nnx.Rngs(0), stack=(LAYERS,))))
    rng = np.random.default_rng(1)
    params = {}
    for path, leaf in nnx.to_flat_state(state):
        shape, own = leaf.get_raw_value().shape, leaf.get_raw_value().dtype
        scale = 1.0 if path[-1] in ("bias", "correction") else 2 * shape[-1] ** -0.5
        params[".".join(map(str, path))] = (scale * rng.normal(size=shape)).astype(own), isinstance(leaf, Matrix)
    return graph, params


def context(num_tokens: jax.Array, kernels: Kernels) -> LayerContext:
    """What experts read of it; they have no place and no position."""
    tokens, zero = BlockTokens(jnp.arange(T), (jnp.arange(T),), num_tokens), jnp.int32(0)
    return LayerContext(tokens, Positional(), zero, 0, zero, None, kernels)


@cache
def program(config: MoEConfig, dtype: str, make: Callable[[], Kernels]) -> tuple[Callable[..., np.ndarray], Params]:
    """(x, num_tokens, residual) -> the residual and, added one by one, what each layer makes of x; and the parameters
    in float64."""
    kernels, (graph, drawn) = make(), draw(config, dtype)
    placed = {
        path: place_matrix(value, kernels) if is_matrix else jnp.asarray(value)
        for path, (value, is_matrix) in drawn.items()
    }
    assert {path for path, value in placed.items() if isinstance(value, KINDS[kernels.name])} >= EXPERTS

    # As users have it: without LLVM's optimisation (tests/conftest.py) a program of one row rounds in another way.
    @jax.jit(compiler_options={"xla_backend_optimization_level": 3})
    def run(params: Any, x: jax.Array, num_tokens: jax.Array, residual: jax.Array) -> Any:
        flat: Any = {tuple(path.split(".")): nnx.Param(value) for path, value in params.items()}
        layers = nnx.merge(graph, nnx.from_flat_state(flat))
        at = context(num_tokens, kernels)

        def visit(layer: Any, _here: Any, sum_: jax.Array) -> Any:
            return layer(x, at, sum_)

        return fold_layers([layers], alike(LAYERS), visit, residual, unrolled=kernels.separate_layers)

    def call(x: np.ndarray, num_tokens: int, residual: np.ndarray | None = None) -> np.ndarray:
        return np.asarray(run(placed, x, np.int32(num_tokens), np.zeros_like(x) if residual is None else residual))

    return call, {path: np.asarray(value).astype(np.float64) for path, (value, _) in drawn.items()}


ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "silu": lambda gate, up: gate / (1 + np.exp(-gate)) * up,
    "gelu": lambda gate, up: gate * (1 + erf(gate / np.sqrt(2))) / 2 * up,
    "gelu_tanh": lambda gate, up: gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2 * up,
    "swiglu_clipped": lambda gate, up: (
        np.minimum(gate, 7) / (1 + np.exp(-1.702 * np.minimum(gate, 7))) * (np.clip(up, -7, 7) + 1)
    ),
}


def of_token(config: MoEConfig, params: Params, x: np.ndarray) -> np.ndarray:
    """One layer's result for one token, from the definition."""

    def mlp(name: str, at: tuple[int, ...] = ()) -> np.ndarray:
        def linear(which: str, x: np.ndarray) -> np.ndarray:
            bias = params.get(f"{name}.{which}.bias")
            return params[f"{name}.{which}.weight"][at] @ x + (0 if bias is None else bias[at])

        return linear("down", ACTIVATIONS[config.activation](*np.split(linear("gate_up", x), 2)))

    logits = params["router.weight"] @ x + params.get("router.bias", 0)
    scores = expit(logits) if config.scoring == "sigmoid" else softmax(logits)
    corrected = scores + params.get("correction", 0)
    by_group = np.sort(corrected.reshape(config.groups, -1))[:, -2 if config.corrected else -1 :].sum(axis=1)
    others = np.argsort(-by_group)[config.best_groups :]
    corrected[np.isin(np.arange(config.experts) * config.groups // config.experts, others)] = -np.inf
    chosen = np.argsort(-corrected, kind="stable")[: config.per_token]
    if config.scoring == "softmax_after_topk":
        weights = softmax(logits[chosen])
    else:
        weights = scores[chosen]
        weights = weights / (weights.sum() + config.least_sum) if config.renormalise else weights
    weights = weights * config.scale
    result = sum(weight * mlp("experts", (expert,)) for weight, expert in zip(weights, chosen, strict=True))
    if config.shared_inner is not None:
        gate = 1 / (1 + np.exp(-params["shared_gate.weight"][0] @ x)) if config.shared_gate else 1
        result = result + gate * mlp("shared")
    return np.asarray(result)


def tokens(dtype: str, count: int = T, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(jnp.dtype(dtype))


# Each option, each layout of weights and each type is in one of these.
QUICK = {
    *((name, native_kernels, "float32") for name in CONFIGS),
    ("qwen2", reference, "float32"),
    ("gpt-oss", native_kernels, "bfloat16"),
    ("gpt-oss", reference, "bfloat16"),
    ("gpt-oss", reference_gpu, "float32"),
}
# With these, each pair of them.
LONG = {
    *((name, reference_gpu, "bfloat16") for name in CONFIGS),
    *((name, reference, "bfloat16") for name in CONFIGS if (name, reference, "float32") not in QUICK),
}
DEFINED = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.full)
    for case in product(CONFIGS, (reference, reference_gpu, native_kernels), ("float32", "bfloat16"))
    if case in QUICK | LONG
]


@pytest.mark.parametrize(("name", "make", "dtype"), DEFINED)
def test_a_token_gets_what_the_definition_says(name: str, make: Callable[[], Kernels], dtype: str) -> None:
    run, params = program(CONFIGS[name], dtype, make)
    x, residual = tokens(dtype), tokens(dtype, seed=1)
    got = run(x, T, residual).astype(np.float64)
    layers = [{path: value[layer] for path, value in params.items()} for layer in range(LAYERS)]
    for token, row in enumerate(x.astype(np.float64)):
        want = residual[token] + sum(of_token(CONFIGS[name], own, row) for own in layers)
        np.testing.assert_allclose(got[token], want, atol=TOLERANCE[dtype] * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("make", SETS)
def test_padding_has_no_effect(make: Callable[[], Kernels]) -> None:
    run, _ = program(QWEN2, "float32", make)
    x = tokens("float32")
    want, other = run(x, 9), np.where(np.arange(T)[:, None] < 9, x, 1e6).astype(np.float32)
    got = run(other, 9)
    np.testing.assert_array_equal(got[:9], want[:9])
    run(x, 0)  # nor does a step of padding alone fail


@cache
def bank(config: MoEConfig, dtype: str, make: Callable[[], Kernels]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all kinds, some drawn and some that one expert draws to itself, and what each gets alone."""
    run, params = program(config, dtype, make)
    drawn = np.concatenate([tokens(dtype, 16), 2 * params["router.weight"][0]]).astype(jnp.dtype(dtype))
    nothing = np.zeros((T, WIDTH), drawn.dtype)
    alone = [run(np.concatenate([token[None], nothing[1:]]), 1)[0] for token in drawn]
    return drawn, np.stack(alone)


SOME = (("sigmoid", "bfloat16"), ("qwen2", "float32"), ("gpt-oss", "bfloat16"))


@pytest.mark.shipped
@pytest.mark.parametrize("make", [reference, native_kernels])
@pytest.mark.parametrize(("name", "dtype"), SOME)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_tokens_bits_are_its_own(name: str, dtype: str, make: Callable[[], Kernels], data: st.DataObject) -> None:
    """Whichever tokens are with it, however many, and wherever it is: all of one expert, of few, of all."""
    run, _ = program(CONFIGS[name], dtype, make)
    drawn, alone = bank(CONFIGS[name], dtype, make)
    some = data.draw(st.lists(st.integers(0, len(drawn) - 1), min_size=1, max_size=4), "tokens that occur")
    batch = data.draw(st.lists(st.sampled_from(some), min_size=1, max_size=T) | st.permutations(range(T)), "batch")
    batch = [token % len(drawn) for token in batch]
    x = np.concatenate([drawn[batch], np.full((T - len(batch), WIDTH), 3, drawn.dtype)])
    np.testing.assert_array_equal(run(x, len(batch))[: len(batch)], alone[batch])


@pytest.mark.parametrize(("name", "dtype"), SOME)
def test_native_bits_do_not_depend_on_the_programs_size(name: str, dtype: str) -> None:
    run, _ = program(CONFIGS[name], dtype, native_kernels)
    drawn, alone = bank(CONFIGS[name], dtype, native_kernels)
    for size in (1, 17):
        np.testing.assert_array_equal(run(drawn[:size], size), alone[:size])


def test_equal_logits_choose_the_first() -> None:
    config = MoEConfig(experts=6, per_token=2, inner=20)
    chosen = route(config, jnp.zeros((3, 6)), jnp.int32(3))
    np.testing.assert_array_equal(chosen.starts, [0, 3, 6, 6, 6, 6, 6])
    np.testing.assert_array_equal(chosen.weights, np.full((3, 2), 0.5))


def test_rows_are_sorted_by_expert_and_found_again() -> None:
    config = MoEConfig(experts=5, per_token=3, inner=20)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(T, 5)))
    found = jax.tree.map(np.asarray, route(config, logits, jnp.int32(20)))
    assert found.starts[-1] == 60
    np.testing.assert_array_equal(found.tokens[found.places[:20]], np.repeat(np.arange(20)[:, None], 3, axis=1))
    chosen = np.argsort(-np.asarray(logits), axis=1)[:20, :3]
    np.testing.assert_array_equal(found.experts[found.places[:20]], chosen)
    for expert in range(5):
        np.testing.assert_array_equal(found.experts[found.starts[expert] : found.starts[expert + 1]], expert)


def test_weights_of_experts_may_be_one_array() -> None:
    """As parameters are before they are placed."""
    graph, drawn = draw(MIXTRAL, "float32")
    x = tokens("float32")

    @jax.jit
    def run(values: Any, x: jax.Array) -> Any:
        flat: Any = {tuple(path.split(".")): nnx.Param(value[0]) for path, value in values.items()}
        return nnx.merge(graph, nnx.from_flat_state(flat))(x, context(jnp.int32(T), REFERENCE), jnp.zeros_like(x))

    got = run({path: value for path, (value, _) in drawn.items()}, x)
    params = {path: value[0].astype(np.float64) for path, (value, _) in drawn.items()}
    want = [of_token(MIXTRAL, params, row) for row in x.astype(np.float64)]
    np.testing.assert_allclose(got, want, atol=TOLERANCE["float32"] * np.abs(want).max(), rtol=0)
