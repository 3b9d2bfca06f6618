"""What a family gets by having a golden: it answers as transformers does, in its own dtype and in all circumstances.

``OF_FAMILIES`` are found, not listed. Here are samples: ``python -m scripts.measure.families`` shows all, run by hand.
Further tests are of families with parts of their own, each of which is in one of them. What a cache in host memory does
for any model is in tests/offload and tests/layerwise.
"""

from dataclasses import astuple, replace
from itertools import combinations, product
from typing import Any

import pytest

from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, native
from jaxgen.weights.load import load_model_config
from tests.support.family_checks import (
    CROSS,
    Circumstances,
    assert_right,
    bfloat16_error,
    offloaded_is_right,
    padding_is_not_read,
    streamed_is_right,
    verified,
)
from tests.support.golden_runs import load_golden
from tests.support.goldens import GOLDENS, OF_FAMILIES, transformers_bfloat16
from tests.support.native import library_for
from tests.support.native import native as library


def _sample(names: tuple[str, ...], first: int) -> list[Any]:
    """Return a third of the names, of which one in four is quick. scripts.measure.families has all of them."""
    chosen = enumerate(names[first::3])
    return [pytest.param(name, marks=[pytest.mark.full] if place % 4 else []) for place, name in chosen]


@pytest.mark.parametrize("name", _sample(OF_FAMILIES, 1))
def test_bfloat16_with_native_kernels_is_as_accurate_as_in_transformers(name: str) -> None:
    """As a CPU serves it."""
    config, _ = load_golden(name)
    error = bfloat16_error(name, native(library_for(replace(config, dtype="bfloat16"))))
    print(f"{name}: error in bfloat16 {error:.4f}, of transformers {transformers_bfloat16(name):.4f}")  # noqa: T201
    assert error < 1.3 * transformers_bfloat16(name)


@pytest.mark.full  # XLA rounds as float32 shows
@pytest.mark.parametrize("name", OF_FAMILIES[::6])
def test_bfloat16_is_as_accurate_as_in_transformers(name: str) -> None:
    assert bfloat16_error(name) < 1.3 * transformers_bfloat16(name)


FIRST, *OTHERS = CROSS
CASES = [
    # Logits of all families are compared by tests/models/test_parity.py, in any run; tokens of some are, too.
    *(
        pytest.param(name, FIRST, id=f"{name}, {FIRST}", marks=[pytest.mark.full] if place % 4 else [])
        for place, name in enumerate(OF_FAMILIES[::3])
    ),
    *(
        pytest.param(name, OTHERS[place % len(OTHERS)], marks=pytest.mark.full)
        for place, name in enumerate(OF_FAMILIES[::4])  # each at least once
        if not (model := load_model_config(GOLDENS / name)).states and not model.has_several_rows  # which stay there
    ),
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_greedy_tokens_agree(name: str, case: Circumstances) -> None:
    assert_right(name, case, native(library()) if case.native else REFERENCE)


def test_each_pair_of_circumstances_is_in_the_cross() -> None:
    rows = [astuple(case) for case in CROSS]
    for one, other in combinations(range(4), 2):
        values = [{row[i] for row in rows} for i in (one, other)]
        assert {(row[one], row[other]) for row in rows} == set(product(*values))


PROJECTED = {
    "qwen3_bias": "a norm of each head's keys, and biases",
    "smollm3_bias": "layers without positions",
    "olmo3": "no norm before the projection, one of all keys, and rotary embeddings by layer",
    "phi_qk": "layer norms of keys, and part of a head rotated",
}


@pytest.mark.full
@pytest.mark.parametrize("name", PROJECTED)
def test_keys_and_values_are_made_again_of_layer_inputs(name: str) -> None:
    """By the kernel that GPUs have for it, in its plain form; CPUs project as a step does."""
    right, projected = offloaded_is_right(name, REFERENCE_GPU)
    assert right
    assert projected > 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "kernels"),
    [("gemma3", "native"), ("gpt_oss_mxfp4", "XLA"), ("falcon_40b", "native"), ("deepseek_v3", "native")],
)
def test_a_cache_in_host_memory_gives_the_same_bits(name: str, kernels: str) -> None:
    """Windows, rotary embeddings and caps by layer; sinks and experts; attention and MLP side by side; latents.

    XLA rounds keys that it makes of layer inputs otherwise than those of a step, where layers rotate differently; the
    engine says so at its start.
    """
    assert streamed_is_right(name, REFERENCE if kernels == "XLA" else native(library())) == (True, True)


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt_oss_mxfp4", "qwen2_moe", "falcon_40b"])
def test_what_kernels_leave_in_rows_of_padding_is_not_read(name: str) -> None:
    """Codes, biases and sinks; experts and a shared one; layer norms."""
    assert padding_is_not_read(name, native(library()))


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt_oss_mxfp4", "qwen2_moe", "ministral3", "glm4_moe_lite"])
def test_a_request_keeps_its_bits_in_every_circumstance(name: str) -> None:
    """Experts, of which other tokens choose others, a shared one, queries scaled by position, and latents."""
    assert [scenario.name for scenario in verified(name, "bfloat16", native(library())) if not scenario.passed] == []
