"""Programs whose layers are written out, with weights of their own, and what attention plans once for all of them."""

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxgen.core.decoder_config import opt_config
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.packed_weight import PackedWeight
from jaxgen.models.placement import abstract_packed_params, pack_params, placing
from jaxgen.models.separate_weights import SeparateWeights
from jaxgen.runner.programs import step_program
from pallas_kernels.ragged_paged_attention import ragged_paged_attention_ref
from tests.support.engines import LLAMA, engine_config, make_engine, params_of, request, run, tokens
from tests.support.golden_runs import logits_of_chunks, make_forward
from tests.support.goldens import Golden
from tests.support.gpu_twins import PACKED, TWINS

PROMPTS = [np.random.default_rng(1).integers(3, 300, size=n).tolist() for n in (1, 7, 40)]
OPT = opt_config(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    head_dim=16,
    max_position=256,
    dtype="float32",
    embed_size=32,
)


def logits(model: Any, kernels: Kernels) -> list[np.ndarray]:
    """Return those after each token of each prompt, by the model without an engine, whose programs compile longer."""
    config = engine_config()
    forward, params = make_forward(model, config), pack_params(model, dict(params_of(model)), kernels)
    nothing = np.zeros(0, np.int32), np.zeros(0, np.float32), dict[Any, Any]()
    asked = [Golden(prompt, [0], *nothing) for prompt in PROMPTS]
    return [logits_of_chunks(forward, model, params, one, config, kernels) for one in asked]


@pytest.mark.parametrize(
    ("model", "kernels"),
    [
        pytest.param(LLAMA, REFERENCE_GPU, id="apart"),
        pytest.param(LLAMA, TWINS, id="stacked"),
        pytest.param(OPT, REFERENCE_GPU, id="opt", marks=pytest.mark.full),  # taken apart in the same way
    ],
)
def test_the_answers_are_those_of_a_scan(model: Any, kernels: Kernels) -> None:
    for found, wanted in zip(logits(model, kernels), logits(model, REFERENCE), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.full  # compiles the programs of an engine
def test_an_engine_whose_layers_are_apart_answers_as_one_that_scans() -> None:
    requests = [request(f"r{i}", p, max_tokens=8, temperature=0.0, ignore_eos=True) for i, p in enumerate(PROMPTS)]
    apart, scanned = (run(make_engine(LLAMA, kernels=kernels), requests) for kernels in (REFERENCE_GPU, REFERENCE))
    for one in requests:
        assert tokens(apart[one.request_id]) == tokens(scanned[one.request_id])


def test_a_product_reads_a_stack_and_the_rest_is_taken_apart() -> None:
    """Matrices that the product does not take, and weights of norms, of which kernels read no slice."""
    placed = pack_params(LLAMA, dict(params_of(LLAMA)), TWINS)
    kinds = {path: type(value) for path, value in placed.items()}
    stacks = {f"layers.{name}.weight" for name in ("attn.qkv", "attn.out", "mlp.gate_up")}
    assert {path for path, kind in kinds.items() if kind is PackedWeight} == stacks
    apart = {f"layers.{name}.weight" for name in ("attn_norm", "mlp_norm", "mlp.down")}
    assert {path for path, kind in kinds.items() if kind is SeparateWeights} == apart
    abstract = abstract_packed_params(LLAMA, TWINS)
    assert [one.shape for one in jax.tree.leaves(placed)] == [one.shape for one in jax.tree.leaves(abstract)]


def test_each_operation_of_a_step_is_that_of_the_kernels() -> None:
    """A step calls the products with stacks, one for gates and what they multiply, and the norms, also the last."""
    calls: Counter[str] = Counter()

    def counted(name: str, kernel: Any) -> Any:
        def call(x: Any, *args: Any, **options: Any) -> Any:
            calls[f"{name} {x.shape}"] += 1
            return kernel(x, *args, **options)

        return call

    packed = replace(
        PACKED,
        product=counted("product", PACKED.product),
        gated_product=counted("gated", PACKED.gated_product),
    )
    kernels = replace(TWINS, packed=packed, rms_norm=counted("norm", TWINS.rms_norm))
    step = step_program(LLAMA, engine_config(), kernels, 16)
    jax.eval_shape(step.function, *step.shapes)
    # one trace serves both layers, whose product of gates is joined with their activation
    assert calls == {"product (16, 64)": 2, "gated (16, 64)": 1, "norm (16, 64)": 3}


def test_only_stacked_matrices_are_taken_apart() -> None:
    placed = pack_params(LLAMA, dict(params_of(LLAMA)), REFERENCE_GPU)
    apart = {path for path, value in placed.items() if isinstance(value, SeparateWeights)}
    assert apart == {p for p in placed if p.startswith("layers.") and p.endswith(".weight") and "norm" not in p}
    for path in apart:
        for layer in range(LLAMA.num_layers):
            np.testing.assert_array_equal(placed[path].at(layer), params_of(LLAMA)[path][layer])
    assert pack_params(LLAMA, dict(placed), REFERENCE_GPU) == placed


def test_weights_come_from_the_host_layer_by_layer() -> None:
    """So that no stack is ever on the device."""
    path = "layers.mlp.down.weight"
    value = placing(LLAMA, REFERENCE_GPU)(path, np.asarray(params_of(LLAMA)[path]))
    assert isinstance(value, SeparateWeights)
    abstract = abstract_packed_params(LLAMA, REFERENCE_GPU)[path]
    assert [w.shape for w in value.weights] == [w.shape for w in abstract.weights]


@pytest.mark.parametrize("kernels", [REFERENCE, REFERENCE_GPU], ids=["scanned", "apart"])
def test_attention_plans_once_for_all_layers(kernels: Any) -> None:
    made: list[Any] = []
    taken: list[Any] = []

    def plan(q: Any, cache: Any, *rows: Any, window: int | None) -> Any:
        made.append((q.shape, window))
        return rows[1] * 2

    def attend(*args: Any, plan: Any, **options: Any) -> Any:
        taken.append(plan)
        return ragged_paged_attention_ref(*args, **options)

    model = replace(LLAMA, windows=(32, 32))
    planned = replace(kernels, ragged_paged_attention=attend, plan_attention=plan)
    step = step_program(model, engine_config(), planned, 16)
    jax.eval_shape(step.function, *step.shapes)
    assert made == [((16, 4, 16), 32)]
    assert len(taken) == 1, "traced once"
    assert taken[0].shape == (4,)
