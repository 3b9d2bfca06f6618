"""A real model's tokens and log-probabilities are those of a float64 computation with the weights of its file.

Where the reference finds two tokens nearly as likely as each other, a greedy answer may take either: such a choice
is counted, and the answer is followed along the token that the engine took.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from jaxgen import LLM
from tests.support.float64_llama import Float64Llama, Floats
from tests.support.real_model import ANSWER, LONG, PROMPTS, answer_all, encoded, long_prompt, scores_of


@dataclass(frozen=True)
class Bounds:
    """Of differences of a log-probability: the largest, and the mean on a text. ``tie``: the least by which the
    reference must prefer a token, so that an answer has to take it. ``ties``: most choices that may differ, of 320."""

    largest: float
    mean: float
    tie: float
    ties: int


BOUNDS = {
    "exact": Bounds(1e-3, 1e-4, 1e-3, 0),  # in float32
    "served": Bounds(0.5, 0.06, 0.25, 12),  # in bfloat16, with weights that are rounded to it
}


@pytest.fixture(scope="module")
def logprobs(reference: Float64Llama) -> Callable[[tuple[int, ...], int], Floats]:
    """The reference, computed once for answers that are equal."""
    return cache(reference.logprobs)


@pytest.mark.parametrize("kind", ["exact", "served"])
def test_greedy_answers_and_their_log_probabilities(
    kind: str, request: pytest.FixtureRequest, logprobs: Callable[[tuple[int, ...], int], Floats]
) -> None:
    llm: LLM = request.getfixturevalue(kind)
    bounds = BOUNDS[kind]
    prompts = [encoded(llm, text) for text in PROMPTS]
    ties, largest = 0, 0.0
    for prompt, answer in zip(prompts, answer_all(llm, prompts), strict=True):
        assert len(answer.tokens) == ANSWER
        rows = logprobs((*prompt, *answer.tokens[:-1]), len(prompt) - 1)
        for row, token, said in zip(rows, answer.tokens, answer.logprobs, strict=True):
            largest = max([largest, *(abs(row[one] - value) for one, value in said.top)])
            if token != row.argmax():
                assert row.max() - row[token] < bounds.tie
                ties += 1
    sys.stdout.write(f"{kind}: largest difference {largest:.2g}, {ties} near-ties of {len(prompts) * ANSWER}\n")
    assert largest < bounds.largest
    assert ties <= bounds.ties


@pytest.mark.parametrize("kind", ["exact", "served"])
def test_a_long_prompt(kind: str, request: pytest.FixtureRequest, long_scores: np.ndarray) -> None:
    llm: LLM = request.getfixturevalue(kind)
    difference = np.abs(scores_of(llm, long_prompt(llm), LONG // 2) - long_scores)
    most, mean = difference.max(), difference.mean()
    sys.stdout.write(f"{kind}: differences of {most:.2g} at most, {mean:.2g} on average, of a text's tokens\n")
    assert most < BOUNDS[kind].largest
    assert mean < BOUNDS[kind].mean
