"""Families with parts of their own, in memory beside the device, and their bits in all circumstances.

Each part is in one family of each test; ``python -m scripts.measure.families`` shows all families, with both kinds of
kernels. What a cache in host memory does for any model is in tests/offload and tests/layerwise.
"""

import pytest

from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, native
from tests.support.family_checks import (
    bfloat16_error,
    offloaded_is_right,
    padding_is_not_read,
    streamed_is_right,
    verified,
)
from tests.support.goldens import OF_FAMILIES, TRANSFORMERS_BFLOAT16
from tests.support.native import native as library

pytestmark = pytest.mark.full

PROJECTED = {
    "qwen3_bias": "a norm of each head's keys, and biases",
    "smollm3_bias": "layers without positions",
    "olmo3": "no norm before the projection, one of all keys, and rotary embeddings by layer",
    "phi_qk": "layer norms of keys, and part of a head rotated",
}


@pytest.mark.parametrize("name", PROJECTED)
def test_keys_and_values_are_made_again_of_layer_inputs(name: str) -> None:
    """By the kernel that GPUs have for it, in its plain form; CPUs project as a step does."""
    right, projected = offloaded_is_right(name, REFERENCE_GPU)
    assert right
    assert projected > 0


@pytest.mark.parametrize(
    ("name", "kernels"), [("gemma3", "native"), ("gpt_oss_mxfp4", "XLA"), ("falcon_40b", "native")]
)
def test_a_cache_in_host_memory_gives_the_same_bits(name: str, kernels: str) -> None:
    """Windows, rotary embeddings and caps by layer; sinks and experts; attention and MLP side by side.

    XLA rounds keys that it makes of layer inputs otherwise than those of a step, where layers rotate differently; the
    engine says so at its start.
    """
    assert streamed_is_right(name, REFERENCE if kernels == "XLA" else native(library())) == (True, True)


@pytest.mark.parametrize("name", ["gpt_oss_mxfp4", "qwen2_moe", "falcon_40b"])
def test_what_kernels_leave_in_rows_of_padding_is_not_read(name: str) -> None:
    """Codes, biases and sinks; experts and a shared one; layer norms."""
    assert padding_is_not_read(name, native(library()))


@pytest.mark.parametrize("name", ["gpt_oss_mxfp4", "qwen2_moe", "ministral3"])
def test_a_request_keeps_its_bits_in_every_circumstance(name: str) -> None:
    """Experts, of which other tokens choose others, a shared one, and queries scaled by position."""
    assert [scenario.name for scenario in verified(name, "bfloat16", native(library())) if not scenario.passed] == []


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_bfloat16_is_as_accurate_as_in_transformers(name: str) -> None:
    error = bfloat16_error(name)
    print(f"{name}: error in bfloat16 {error:.4f}, of transformers {TRANSFORMERS_BFLOAT16[name]:.4f}")  # noqa: T201
    assert error < 1.3 * TRANSFORMERS_BFLOAT16[name]
