"""A model that several devices have a part of each: what a start refuses, and what the engine answers."""

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgen.assembly import build as build_module
from jaxgen.assembly.build import build_to_fit
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.assembly.text_settings import own_text_settings
from jaxgen.core.config import EngineOptions, KernelChoice
from jaxgen.core.errors import ConfigError
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.runners import program_texts
from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.models import linear
from jaxgen.models.rank_sum import RANKS
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.tools.determinism import Verifier
from tests.support.engines import run, tokens
from tests.support.family_checks import wanted
from tests.support.goldens import GOLDENS, golden_answers

SIZES: dict[str, Any] = {
    "token_budget": 16,
    "max_num_seqs": 8,
    "max_model_len": 120,
    "block_size": 8,
    "num_blocks": 18,
    "single_shape": True,
}
OPTIONS = EngineOptions(**SIZES)


def resolved(name: str, ranks: int, kernels: KernelChoice = "xla", **options: Any) -> ResolvedModel:
    chosen = replace(OPTIONS, tensor_parallel_size=ranks, **options)
    return resolve_on_device(str(GOLDENS / name), dtype="float32", kernels=kernels, options=chosen, progress=False)


def engine_of(found: ResolvedModel, **options: Any) -> Engine:
    chosen, texts = replace(OPTIONS, **options), own_text_settings(found.directory)
    return build_to_fit(found, found.configure(chosen), chosen, texts, ends=False, progress=False)


@pytest.mark.parametrize(
    ("name", "ranks", "options", "message"),
    [
        ("llama", 0, {}, "--tensor-parallel-size must be 1 or more, not 0"),
        ("llama", 16, {}, "multiple of the model's|num_attention_heads"),
        ("gpt_oss", 2, {}, "--tensor-parallel-size 2: models that have experts with biases are not divided yet"),
        ("llama", 2, {"kv_offloading_size": 1.0}, "2 does not go with --kv-offloading-size yet: drop one"),
        ("llama", 2, {"kv_residency": "host"}, "2 does not go with --kv-residency yet"),
        ("llama", 2, {"speculative_config": '{"method": "ngram"}'}, "2 does not go with --speculative-config yet"),
    ],
)
def test_what_is_not_divided_is_refused_at_the_start(
    name: str, ranks: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(name, ranks, **options)


def test_too_few_devices_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = jax.devices()
    monkeypatch.setattr(jax, "devices", lambda: [first])
    with pytest.raises(ConfigError) as caught:
        resolved("llama", 2)
    assert str(caught.value) == (
        "--tensor-parallel-size 2: JAX has 1 (cpu), so use less; a CPU is 2 with JAX_NUM_CPU_DEVICES=2"
    )


def test_one_device_has_the_model_as_it_is() -> None:
    found = resolved("llama", 1)
    assert (found.division, found.model.num_devices) == (None, 1)


def test_each_device_has_its_part_of_weights_and_memory() -> None:
    one, four = (resolved("llama", ranks) for ranks in (1, 4))
    assert four.params_bytes < 0.6 * one.params_bytes  # all have the embeddings and the head
    assert four.memory.free_bytes < 0.3 * one.memory.free_bytes


def greedy_tokens(engine: Engine, name: str) -> list[list[int]]:
    found = run(engine, wanted(golden_answers(name)))
    return [tokens(found[one.request_id]) for one in wanted(golden_answers(name))]


@pytest.mark.full
def test_native_kernels_give_the_recorded_tokens_and_the_same_bits_in_any_company() -> None:
    """Four devices, of which two have the same KV head, and of each expert and the shared one a part."""
    engine = engine_of(resolved("qwen2_moe", 4, "auto"))
    assert greedy_tokens(engine, "qwen2_moe") == [answer.greedy for answer in golden_answers("qwen2_moe")]
    assert engine.identity.parts["model"]["tensor_parallel_size"] == 4
    for scenario in Verifier(engine, requests=7, seed=1).verify():
        assert scenario.passed, scenario


@pytest.mark.full
def test_a_sum_in_the_order_of_a_ring_gives_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins at a rank that follows from the row, as NCCL's does: the check of bits finds that."""

    def in_ring_order(x: Float[Array, "T D"], dtype: DTypeLike) -> Float[Array, "T D"]:
        parts, rows, ranks = lax.all_gather(x, RANKS), jnp.arange(len(x)), lax.axis_size(RANKS)
        total = parts[rows % ranks, rows]
        for step in range(1, ranks):
            total = total + parts[(rows + step) % ranks, rows]
        return total.astype(dtype)

    monkeypatch.setattr(linear, "sum_in_rank_order", in_ring_order)
    engine, asked = engine_of(resolved("llama", 4)), wanted(golden_answers("llama"))
    together = run(engine, asked)
    assert [tokens(together[one.request_id]) for one in asked] == [one.greedy for one in golden_answers("llama")]
    assert any(run(engine, [one])[one.request_id] != together[one.request_id] for one in asked)


@pytest.mark.full
def test_programs_as_of_gpus_give_the_recorded_tokens_and_no_library_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layers and matrices apart, programs that sample, two kinds of cache, biases, and a norm of each head."""
    monkeypatch.setattr(build_module, "choose_kernels", lambda *_, **__: REFERENCE_GPU)
    small = {"token_budget": 8, "max_num_seqs": 4, "block_size": 4, "num_blocks": 64}
    engine = engine_of(resolved("qwen3_bias", 2), **small)
    assert len(engine.config.cache.blocks_of_kinds) == 2
    assert greedy_tokens(engine, "qwen3_bias") == [answer.greedy for answer in golden_answers("qwen3_bias")]
    runner = engine.runner
    assert isinstance(runner, ModelRunner)
    (layers, *_) = program_texts(runner._compiled)
    assert len(re.findall(r" all-gather\(", layers)) == 2 * runner._model.num_layers
    assert not re.search("all-reduce|reduce-scatter", layers)
