"""Programs whose layers are written out, with weights of their own, and what attention plans once for all of them."""

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from jaxgen.core.decoder_config import Placement, opt_config
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.packed_weight import PackedWeight
from jaxgen.models.placement import abstract_packed_params, pack_params, placing
from jaxgen.models.separate_weights import SeparateWeights
from jaxgen.runner import model_runner
from jaxgen.runner.programs import step_program
from pallas_kernels.add_norm import add_rms_norm_ref
from pallas_kernels.ragged_paged_attention import ragged_paged_attention_ref
from tests.support.engines import LLAMA, engine_config, make_engine, params_of, request, run, tokens
from tests.support.golden_runs import logits_of_chunks, make_forward
from tests.support.goldens import Golden
from tests.support.gpu_twins import PACKED, TWINS

PROMPTS = [np.random.default_rng(1).integers(3, 300, size=n).tolist() for n in (1, 7, 40)]
WIDE = replace(LLAMA, hidden_size=128, intermediate_size=128, head_dim=32)
"""So wide that products into the residual have two parts."""
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
        pytest.param(WIDE, REFERENCE_GPU, id="apart"),
        pytest.param(WIDE, TWINS, id="stacked"),
        pytest.param(OPT, REFERENCE_GPU, id="opt", marks=pytest.mark.full),  # taken apart in the same way
    ],
)
def test_the_answers_are_those_of_a_scan(model: Any, kernels: Kernels) -> None:
    """Also where norms add the parts of a product, within a layer, between layers and after the last."""
    for found, wanted in zip(logits(model, kernels), logits(model, REFERENCE), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.full  # compiles the programs of engines
@pytest.mark.parametrize("kernels", [REFERENCE_GPU, TWINS], ids=["apart", "stacked"])
def test_an_engine_whose_layers_are_apart_answers_as_one_that_scans(kernels: Kernels) -> None:
    requests = [request(f"r{i}", p, max_tokens=8, temperature=0.0, ignore_eos=True) for i, p in enumerate(PROMPTS)]
    apart, scanned = (run(make_engine(WIDE, kernels=one), requests) for one in (kernels, REFERENCE))
    for one in requests:
        assert tokens(apart[one.request_id]) == tokens(scanned[one.request_id])


def test_a_step_for_gpus_loads_rows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that begin with it, or some, and programs before it the others."""
    engine, answers = make_engine(WIDE, kernels=REFERENCE_GPU), []
    for in_step in (0, 1, 8):
        monkeypatch.setattr(model_runner, "ROWS_AT_ONCE", in_step)
        requests = [request(f"r{i}", p, max_tokens=3, temperature=0.9, seed=i) for i, p in enumerate(PROMPTS)]
        answers.append({name: tokens(events) for name, events in run(engine, requests).items()})
    assert answers[0] == answers[1] == answers[2]


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
    """A step calls the products with stacks, one for gates and what they multiply, and the norms, also the last.

    All norms but the first add the parts of the product before them. So the first layer has a trace of its own.
    """
    calls: Counter[str] = Counter()

    def counted(name: str, kernel: Any) -> Any:
        def call(x: Any, *args: Any, **options: Any) -> Any:
            assert len(x) == 16
            calls[name] += 1
            return kernel(x, *args, **options)

        return call

    packed = replace(
        PACKED,
        product=counted("product", PACKED.product),
        gated_product=counted("gated", PACKED.gated_product),
        product_parts=counted("parts", PACKED.product_parts),
    )
    of_norms = {"rms_norm": counted("norm", TWINS.rms_norm), "add_rms_norm": counted("add", TWINS.add_rms_norm)}
    kernels = replace(TWINS, packed=packed, **of_norms)
    step = step_program(replace(WIDE, num_layers=3), engine_config(), kernels, 16)
    jax.eval_shape(step.function, *step.shapes)
    assert calls == {"product": 2, "gated": 2, "parts": 4, "norm": 1, "add": 4}
    calls.clear()
    kept = replace(engine_config(), cache=replace(engine_config().cache, keep_inputs=True))
    step = step_program(WIDE, kept, kernels, 16)
    jax.eval_shape(step.function, *step.shapes)
    assert calls == {"product": 2, "gated": 1, "parts": 1, "norm": 2, "add": 1}, "the inputs of layers are sums"


def test_norms_after_other_sums_are_alone() -> None:
    """Where a norm of what is added comes first. With parallel halves, the last norm adds."""
    found: dict[Placement, int] = {"sandwich": 0, "post": 0, "parallel": 1, "post_sum": 2}
    for placement, adding in found.items():
        calls: Counter[str] = Counter()

        def add(*args: Any, calls: Any = calls, **options: Any) -> Any:
            calls["add"] += 1
            return add_rms_norm_ref(*args, **options)

        model = replace(WIDE, num_layers=1, placement=placement)
        step = step_program(model, engine_config(), replace(TWINS, add_rms_norm=add), 16)
        jax.eval_shape(step.function, *step.shapes)
        assert calls["add"] == adding, placement


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
