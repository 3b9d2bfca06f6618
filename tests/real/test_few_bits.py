"""Weights and KV of few bits cost a real model a stated share of its perplexity on a fixed text."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jaxgen import LLM
from tests.real.conftest import MOST
from tests.support.real_model import LONG, NAME, long_prompt, scores_of

MOST_PERPLEXITY = {
    "weights of 8 bits": ({"quantization": "int8"}, 1.02),
    "weights of 4 bits": ({"quantization": "int4"}, 1.25),
    "KV of 8 bits": ({"kv_cache_dtype": "int8"}, 1.02),
}
"""Options of the engine, and the most perplexity, as a share of the reference's."""


@pytest.mark.parametrize("what", MOST_PERPLEXITY)
def test_perplexity(what: str, gguf_file: object, long_scores: npt.NDArray[np.float64]) -> None:
    options, most = MOST_PERPLEXITY[what]
    arguments: dict[str, Any] = {**options, "max_model_len": MOST, "single_shape": True}
    with LLM(NAME, **arguments) as llm:
        found = scores_of(llm, long_prompt(llm), LONG // 2)
    plain, rounded = np.exp(-long_scores.mean()), np.exp(-found.mean())
    sys.stdout.write(f"{what}: perplexity {rounded:.2f}, {rounded / plain:.4f} of the reference's {plain:.2f}\n")
    assert np.abs(found - long_scores).max() > 1e-3, "nothing was rounded"
    assert rounded < most * plain
