"""Find a seed whose answers make a good test, and show that each setting and each tensor matters to them."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

from scripts.make.goldens.model import UNUSED, Seen, build, changed, forward, neutral, values_of, watch
from scripts.make.goldens.variant import Variant

NUM_GREEDY = 24
MIN_ROUTER_GAP = 2e-3
MIN_DISTINCT = 8
ROWS = 11
MIN_CHANGE = 2e-4
"""Twice the tests' tolerance, relative to the largest logit: two ways to compute GELU are hardly further apart."""
MAX_SEEDS = 300
MAX_WEAK = 8
"""Seeds of good answers that are tried for the contrasts, since these take a thousand times as long."""
WEAK = "change less than the tests can see"


class PoorSeedError(Exception):
    """Says why the answers of a seed make a poor test."""


@dataclass(frozen=True)
class Found:
    """A seed that makes a good test, its model and answers, and the least change by a contrast or a tensor."""

    seed: int
    model: Any
    answers: "list[Answer]"
    least_change: tuple[float, str]


@dataclass(frozen=True)
class Answer:
    """A prompt, its greedy continuation, and what the model computes for both but the last token."""

    prompt: Any
    greedy: Any
    seen: Seen

    @property
    def computed(self) -> Any:
        """The tokens that were computed."""
        return np.concatenate([self.prompt, self.greedy[:-1]])

    @property
    def rows(self) -> Any:
        """The positions of which the logits are kept, int32 [R]."""
        spread = np.linspace(0, len(self.seen.logits) - 1, ROWS).round()
        return np.union1d(spread, len(self.prompt) - 1).astype(np.int32)

    def error(self, logits: Any) -> float:
        """The largest difference of a logit that is kept, relative to the largest."""
        kept = self.seen.logits[self.rows]
        return float(np.abs(logits[self.rows] - kept).max() / np.abs(kept).max())

    @property
    def gap(self) -> float:
        """The least lead of a greedy token over the second best."""
        best = np.sort(self.seen.logits[len(self.prompt) - 1 :], axis=-1)
        return float((best[:, -1] - best[:, -2]).min())


def find(variant: Variant) -> Found:
    """Return the first seed that makes a good test. Raises ValueError that says what the seeds failed in."""
    failures: Counter[str] = Counter()
    for seed in range(MAX_SEEDS):
        try:
            return attempt(variant, seed)
        except PoorSeedError as error:
            failures[str(error)] += 1
        if sum(number for reason, number in failures.items() if WEAK in reason) == MAX_WEAK:
            break
    reasons = "\n".join(f"  {number} seeds: {reason}" for reason, number in failures.most_common(12))
    raise ValueError(f"none of {seed + 1} seeds makes a good test:\n{reasons}")


def attempt(variant: Variant, seed: int) -> Found:
    """Return what a seed gives. Raises PoorSeedError."""
    model = build(variant, seed)
    rng = np.random.default_rng(seed)
    vocabulary = model.config.get_text_config().vocab_size
    answers = []
    for length in variant.lengths:
        answer = complete(model, rng.integers(0, vocabulary, length, dtype=np.int32))
        if len(set(answer.greedy.tolist())) < MIN_DISTINCT:
            raise PoorSeedError(f"an answer has fewer than {MIN_DISTINCT} different tokens (a smaller embedding helps)")
        answers.append(answer)
    if min(answer.gap for answer in answers) < variant.least_gap:
        raise PoorSeedError(f"a greedy token leads the second best by less than least_gap ({variant.least_gap})")
    if min(answer.seen.router_gap for answer in answers) < MIN_ROUTER_GAP:
        raise PoorSeedError(f"a chosen expert leads the best of the others by less than {MIN_ROUTER_GAP}")
    if answers[-1].seen.idle_expert:
        raise PoorSeedError("no token of the longest prompt chooses one of the experts")
    return Found(seed, model, answers, weakest(variant, model, answers))


def complete(model: Any, prompt: Any) -> Answer:
    """Return the answer of the most probable tokens."""
    tokens = prompt
    for _ in range(NUM_GREEDY):
        tokens = np.append(tokens, forward(model, tokens)[-1].argmax()).astype(np.int32)
    return Answer(prompt, tokens[len(prompt) :], watch(model, tokens[:-1]))


def arrays(answers: list[Answer]) -> dict[str, Any]:
    """Return the content of golden.npz, except ``bfloat16``."""
    result: dict[str, Any] = {}
    for i, answer in enumerate(answers):
        prompt, rows = answer.prompt, answer.rows
        result |= {f"prompt_{i}": prompt, f"greedy_{i}": answer.greedy}
        hidden = answer.seen.hidden[: len(prompt)]
        pooled = np.stack([hidden.mean(axis=0), hidden[-1], hidden[0]]).astype(np.float32)
        result |= {f"rows_{i}": rows, f"logits_{i}": answer.seen.logits[rows], f"pooled_{i}": pooled}
    return result


def weakest(variant: Variant, model: Any, answers: list[Answer]) -> tuple[float, str]:
    """Return the least change of recorded logits, relative to the largest, by a contrast or a tensor, and which it was.

    Raises PoorSeedError if one changes less than the tests can see, or one that is said to be idle changes something.
    """

    def change(other: Any) -> float:
        return max(answer.error(forward(other, answer.computed)) for answer in answers)

    changes = [(change(changed(variant, model, contrast)), str(contrast)) for contrast in variant.contrasts]
    for name, parameter in values_of(model).items():
        if name.startswith(tuple(f"model.{unused}" for unused in UNUSED)):
            continue
        if name.endswith(variant.idle):
            if without(model, parameter, neutral(variant, name), change) >= MIN_CHANGE:
                raise PoorSeedError(f"{name} is said to be idle and changes the logits")
            continue
        for part, piece in pieces(name, parameter):
            changes.append((without(model, piece, neutral(variant, name), change), part))
    if poor := sorted(part for value, part in changes if value < MIN_CHANGE):
        raise PoorSeedError(f"{', '.join(poor)} {WEAK}")
    return min(changes)


def without(model: Any, piece: Any, value: float, change: Any) -> float:
    """Return the change of logits when part of a parameter is set to ``value``; then it is put back."""
    kept = piece.detach().clone()
    with torch.no_grad():
        piece.fill_(value)
        result: float = change(model)
        piece.copy_(kept)
    return result


def pieces(name: str, parameter: Any) -> list[tuple[str, Any]]:
    """Return a parameter's name and itself, or those of each expert in it."""
    if ".experts." not in name:
        return [(name, parameter)]
    return [(f"{name}[{expert}]", piece) for expert, piece in enumerate(parameter)]
