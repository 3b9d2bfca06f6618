"""The engine against transformers, on recorded answers: logits of single steps and greedy tokens through any schedule.

python -m scripts.make.goldens wrote the checkpoints and the answers with transformers in float32.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from jaxgen.core.config import CacheConfig, DType, EngineConfig, SchedulerConfig
from jaxgen.core.kv_dtype import KVDType
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.models.placement import pack_params
from jaxgen.weights import convert
from jaxgen.weights.load import load_model_config, load_params
from tests.support.golden_runs import (
    LOGIT_TOLERANCE,
    SMALL,
    greedy_tokens,
    load_golden,
    logits_of_chunks,
    make_forward,
    relative_logit_error,
)
from tests.support.goldens import GOLDENS, NAMES, OF_FAMILIES, golden_answers
from tests.support.native import native as library

TIGHT = EngineConfig(CacheConfig(8, 16), SchedulerConfig(16, 8, 128), seed=0, max_logit_bias=4)
"""Blocks for one sequence of full length: the others are preempted."""


# Of each kernel and of each way in which a family takes it one; rope is no kernel.
OF_KERNELS = ("llama_bias", "mistral_window", "opt_350m", "gemma2", "gpt_oss")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.shipped if name in OF_KERNELS else ()) for name in NAMES]
)
def test_logits_agree(name: str) -> None:
    error = relative_logit_error(*load_golden(name), golden_answers(name), SMALL)
    print(f"{name}: relative error of logits {error:.1e}")  # noqa: T201
    assert error < LOGIT_TOLERANCE


def long_ones(without: tuple[str, ...]) -> list[Any]:
    """Tests of the other families, which are many."""
    return [pytest.param(name, marks=pytest.mark.full) for name in OF_FAMILIES if name not in without]


@pytest.mark.parametrize("name", [*OF_KERNELS, *long_ones(OF_KERNELS)])
def test_logits_agree_with_native_kernels(name: str) -> None:
    error = relative_logit_error(*load_golden(name), golden_answers(name), SMALL, native(library()))
    print(f"{name}: relative error of logits {error:.1e}")  # noqa: T201
    assert error < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    ("name", "kv_dtype", "bound"),
    [
        ("llama", "int8", 0.1),
        ("gemma2", "fp8", 0.2),
        pytest.param("opt_350m", "int8", 0.1, marks=pytest.mark.full),  # families know nothing of it
        pytest.param("opt_350m", "fp8", 0.3, marks=pytest.mark.full),
    ],
)
def test_logits_are_near_with_a_cache_of_codes(name: str, kv_dtype: KVDType, bound: float) -> None:
    """int8 costs less than bfloat16 does, 0.11 in the first. Equal logits would mean that there are no codes."""
    config, params = load_golden(name)
    model = replace(config, kv_dtype=kv_dtype)
    error = relative_logit_error(model, params, golden_answers(name), SMALL, native(library()))
    print(f"{name}, {kv_dtype}: relative error of logits {error:.1e}")  # noqa: T201
    assert LOGIT_TOLERANCE < error < bound


ENGINES = ("llama", "mistral_window", "opt_350m")
OTHER_ENGINES = ("qwen2_moe", "gpt_oss_mxfp4", "gemma3", "falcon_40b", "phi3_long", "ministral3")
"""Each with a part that depends on where a token stands, or on its neighbours. Logits of all families are above, and
greedy tokens of all in ``python -m scripts.measure.families``."""


@pytest.mark.shipped
@pytest.mark.parametrize("name", [*ENGINES, *(pytest.param(name, marks=pytest.mark.full) for name in OTHER_ENGINES)])
def test_greedy_tokens_agree(name: str) -> None:
    """All prompts at once, chunked and mixed."""
    answers = golden_answers(name)
    tokens, _ = greedy_tokens(*load_golden(name), answers, SMALL)
    assert tokens == [answer.greedy for answer in answers]


@pytest.mark.parametrize(
    "name",
    [
        "mistral_window",
        # Preemption is the scheduler's, which knows no family.
        pytest.param("llama", marks=pytest.mark.full),
        pytest.param("opt_350m", marks=pytest.mark.full),
    ],
)
def test_greedy_tokens_agree_after_preemption(name: str) -> None:
    answers = golden_answers(name) * 2
    tokens, stats = greedy_tokens(*load_golden(name), answers, TIGHT)
    assert tokens == [answer.greedy for answer in answers]
    assert stats.preemptions > 0


@pytest.mark.parametrize("name", ENGINES)
def test_converted_directories_give_the_same_tokens(name: str, tmp_path: Path) -> None:
    convert.main([str(GOLDENS / name), str(tmp_path / "converted"), "--dtype", "float32"])
    config = load_model_config(tmp_path / "converted", "auto")
    params = load_params(tmp_path / "converted", config, progress=False)
    answers = golden_answers(name)
    tokens, _ = greedy_tokens(config, params, answers, SMALL)
    assert tokens == [answer.greedy for answer in answers]


TRANSFORMERS_ERROR = {
    ("llama", "bfloat16"): 0.085,
    ("llama", "float16"): 0.0077,
    ("opt_350m", "bfloat16"): 0.074,
    ("opt_350m", "float16"): 0.0080,
}
"""Mean error of log-probabilities of transformers itself in that dtype, on the longest prompt, against its float32."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", "bfloat16"),
        ("opt_350m", "float16"),
        # The other half of the table has no family and no type of its own.
        pytest.param("llama", "float16", marks=pytest.mark.full),
        pytest.param("opt_350m", "bfloat16", marks=pytest.mark.full),
    ],
)
def test_narrow_dtypes_are_as_accurate_as_in_transformers(name: str, dtype: DType) -> None:
    config = load_model_config(GOLDENS / name, dtype)
    params = load_params(GOLDENS / name, config, progress=False)
    assert {p.dtype for p in params.values()} == {jnp.dtype(dtype)}
    answer = max(golden_answers(name), key=lambda answer: len(answer.prompt))
    packed = pack_params(config, dict(params), REFERENCE)
    logits = logits_of_chunks(make_forward(config, SMALL), config, packed, answer, SMALL)
    told = answer.prompt[1:]
    rows = np.arange(len(told))
    got = log_softmax(logits[rows].astype(np.float64), axis=-1)[rows, told]
    want = log_softmax(answer.logits[rows].astype(np.float64), axis=-1)[rows, told]
    assert np.abs(got - want).mean() < 1.3 * TRANSFORMERS_ERROR[name, dtype]
