"""A real model's tokens and log-probabilities are those of a float64 computation with the weights of its file.

Where the reference finds two tokens within the tolerance of each other, a greedy answer may take either: such a choice
is counted, and the answer is followed along the token that the engine took.
"""

import sys

import numpy as np
import pytest

from jaxgen import LLM
from tests.support.float64_llama import Float64Llama
from tests.support.real_model import ANSWER, LONG, PROMPTS, answer_all, encoded, long_prompt, scores_of

TOLERANCES = {"exact": 1e-3, "served": 0.25}
"""Largest difference of a log-probability: of float32, and of bfloat16 with weights that are rounded to it."""
NEAR_TIES = {"exact": 0, "served": 12}
"""Most choices among the 480 that may be another than the reference's, all of them within the tolerance."""
FIRST = LONG // 2


@pytest.mark.parametrize("kind", ["exact", "served"])
def test_greedy_answers_and_their_log_probabilities(
    kind: str, request: pytest.FixtureRequest, reference: Float64Llama
) -> None:
    llm: LLM = request.getfixturevalue(kind)
    prompts = [encoded(llm, text) for text in PROMPTS]
    ties, largest = 0, 0.0
    for prompt, answer in zip(prompts, answer_all(llm, prompts), strict=True):
        assert len(answer.tokens) == ANSWER
        rows = reference.logprobs((*prompt, *answer.tokens[:-1]), len(prompt) - 1)
        for row, token, said in zip(rows, answer.tokens, answer.logprobs, strict=True):
            largest = max([largest, *(abs(row[one] - value) for one, value in said.top)])
            if token != row.argmax():
                assert row.max() - row[token] < TOLERANCES[kind]
                ties += 1
    sys.stdout.write(f"{kind}: largest difference {largest:.2g}, {ties} near-ties of {len(prompts) * ANSWER}\n")
    assert largest < TOLERANCES[kind]
    assert ties <= NEAR_TIES[kind]


@pytest.mark.parametrize("kind", ["exact", "served"])
def test_a_long_prompt(kind: str, request: pytest.FixtureRequest, long_scores: np.ndarray) -> None:
    llm: LLM = request.getfixturevalue(kind)
    found = scores_of(llm, long_prompt(llm), FIRST)
    difference = np.abs(found - long_scores)
    sys.stdout.write(
        f"{kind}: {difference.max():.2g} at most, {difference.mean():.2g} on average of {len(found)} tokens\n"
    )
    assert mean < TOLERANCES[kind] / 5
    assert most < 4 * TOLERANCES[kind]
