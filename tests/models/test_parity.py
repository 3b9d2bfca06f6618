"""The engine against transformers, on recorded answers: logits of single steps and greedy tokens through any schedule.

python -m scripts.make.goldens wrote the checkpoints and the answers with transformers in float32.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from jaxgen.core.kv_dtype import KVDType
from jaxgen.core.model_config import DType
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.models.placement import pack_params
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

# Of each kernel and of each way in which a family takes it one; rope is no kernel.
OF_KERNELS = ("llama_bias", "mistral_window", "opt_350m", "gemma2", "gpt_oss")
# With parts in an order, or a rotary embedding, that neither these nor the goldens of families have.
OF_THEIR_OWN = ("falcon_40b", "llama3_rope", "opt_pre", "stablelm_heads")
# Families whose parts lfm2_moe and deepseek_v3 have too.
OF_OTHERS = ("dots1", "ernie4_5_moe", "glm4_moe")


def _marks(name: str) -> list[pytest.MarkDecorator]:
    """Full: those whose parts others have too, each in another combination."""
    shown = {*OF_FAMILIES, *OF_KERNELS, *OF_THEIR_OWN} - {*OF_OTHERS}
    others = [] if name in shown else [pytest.mark.full]
    return [*others, *([pytest.mark.shipped] if name in OF_KERNELS else [])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in NAMES])
def test_logits_agree(name: str) -> None:
    error = relative_logit_error(*load_golden(name), golden_answers(name), SMALL)
    print(f"{name}: relative error of logits {error:.1e}")  # noqa: T201
    assert error < LOGIT_TOLERANCE


@pytest.mark.parametrize("name", OF_KERNELS)
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


ENGINES = ("llama3_rope", "mistral_window", "gpt_oss_mxfp4", "falcon_40b")
"""Each with a part that depends on where a token stands, or on its neighbours, as no golden of OF_FAMILIES has it."""


@pytest.mark.full  # test_family_matrix has one of each family
@pytest.mark.parametrize("name", ENGINES)
def test_greedy_tokens_agree(name: str) -> None:
    """All prompts at once, chunked and mixed."""
    answers = golden_answers(name)
    tokens, _ = greedy_tokens(*load_golden(name), answers, SMALL)
    assert tokens == [answer.greedy for answer in answers]


TRANSFORMERS_FLOAT16 = {"llama": 0.0080, "opt_350m": 0.0098}
"""As ``bfloat16`` of goldens, in float16."""


@pytest.mark.parametrize("name", ["opt_350m", pytest.param("llama", marks=pytest.mark.full)])
def test_float16_is_as_accurate_as_in_transformers(name: str) -> None:
    dtype: DType = "float16"
    config = load_model_config(GOLDENS / name, dtype)
    params = load_params(GOLDENS / name, config, progress=False)
    assert {p.dtype for p in params.values()} == {jnp.dtype(dtype)}
    answer = max(golden_answers(name), key=lambda answer: len(answer.prompt))
    packed = pack_params(config, dict(params), REFERENCE)
    logits = logits_of_chunks(make_forward(config, SMALL), config, packed, answer, SMALL)
    got, want = (log_softmax(one.astype(np.float64), axis=-1) for one in (logits[answer.rows], answer.logits))
    assert np.abs(got - want).mean() < 1.3 * TRANSFORMERS_FLOAT16[name]
