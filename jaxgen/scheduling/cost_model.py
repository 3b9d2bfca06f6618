"""Model the seconds of a step by what it computes, fitted to measured steps. Host only, no jax.

A step's time depends on its number of tokens, hardly on its number of sequences. Dynamic SplitFuse rests on this (arXiv
2401.08671, 3.1 to 3.3). Attention adds two parts, for what the tokens attend to. A chunk of a prompt reads K and
V once for all its tokens, so it costs products. A decode reads its whole context for one token, so it costs bytes. On
CPUs a token of the context costs a decode five times what it costs each token of a chunk.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

MEMORY = 500
"""Steps that a meter remembers, roughly: each step weighs ``1 - 1 / MEMORY`` of the one after it."""
KNOWN_WEIGHT = 16.0
"""Weight, in steps, of the samples that an estimator begins with. It never falls, so rare kinds of steps stay known."""
PARTS = 4
"""Of a LinearCost that is fitted: all but its floor."""
FIT_TURNS = 8
FLOOR_STEP = 32
"""Tokens between two floors that are tried."""
REFIT_STEPS = 32
"""Steps between two fits of a meter."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step that was measured: its tokens, and its seconds. ``positions``: how many tokens are before each token of a
    longer chunk, summed; ``contexts``: how many are before each chunk of one token, summed."""

    tokens: int
    positions: int
    seconds: float
    contexts: int = 0


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Predicted seconds of a step of one program; ``floor``: what its tokens take at least, however few."""

    base: float
    per_token: float = 0.0
    per_position: float = 0.0
    per_context: float = 0.0
    floor: float = 0.0

    def seconds(self, tokens: int, positions: int = 0, contexts: int = 0) -> float:
        """``positions`` and ``contexts`` as in StepSample."""
        attention = self.per_position * positions + self.per_context * contexts
        return max(self.floor, self.base + self.per_token * tokens) + attention

    def tokens_within(self, seconds: float, contexts: int = 0) -> float:
        """Return the most tokens of a step that takes at most ``seconds``, with decodes of these ``contexts``.

        Infinite if tokens cost nothing, below 0 if none fits.
        """
        left = seconds - self.per_context * contexts
        if left < self.floor:
            return -1.0
        if self.per_token == 0.0:
            return float("inf") if left >= self.base else -1.0
        return (left - self.base) / self.per_token


class CostEstimator:
    """Keeps a LinearCost up to date with the steps of one program, by exponentially weighted least squares.

    Errors are relative to the predicted time. Errors relative to the measured time would overweight short outliers: if
    the host notices the end of a step late, the next step looks too short.

    ``known``: steps measured before, at least one. ``floored``: steps of few tokens may all take the same, as on a GPU
    that reads its weights meanwhile. Then they count as steps of as many tokens as that time has room for.
    """

    def __init__(self, known: Iterable[StepSample], *, floored: bool = False) -> None:
        known = tuple(known)
        self._least = _least_tokens(known) if floored else 0
        known = _of_more(known, self._least)
        self.cost = _floored(fit(known), self._least)
        self._known = _normal(known, self.cost)
        self._known.scale(KNOWN_WEIGHT / len(known))
        self._seen = _Normal()
        self._unfitted = 0

    def observe(self, sample: StepSample) -> bool:
        """Whether the cost is another one now."""
        self._seen.scale(1.0 - 1.0 / MEMORY)
        (sample,) = _of_more((sample,), self._least)
        self._seen.add(sample, self.cost)
        self._unfitted += 1
        if self._unfitted < REFIT_STEPS:
            return False
        self.cost = _floored(_solve(self._known + self._seen), self._least)
        self._unfitted = 0
        return True


def _least_tokens(known: Sequence[StepSample]) -> int:
    """Return the tokens up to which steps take the same time: of some numbers, the one that fits best."""

    def error(least: int) -> float:
        samples = _of_more(known, least)
        cost = fit(samples)
        return sum([(cost.seconds(s.tokens, s.positions, s.contexts) / s.seconds - 1.0) ** 2 for s in samples])

    return min(range(0, max(sample.tokens for sample in known) // 2 + 1, FLOOR_STEP), key=error)


def _of_more(samples: Sequence[StepSample], least: int) -> tuple[StepSample, ...]:
    """Return the samples, those of fewer tokens than ``least`` as if they had as many."""
    return tuple([replace(one, tokens=max(one.tokens, least)) for one in samples])


def _floored(cost: LinearCost, least: int) -> LinearCost:
    return replace(cost, floor=cost.base + cost.per_token * least) if least else cost


def fit(samples: Iterable[StepSample]) -> LinearCost:
    """The cost, without a floor, whose relative errors on the samples have the least sum of squares.

    They are relative to the prediction, hence several turns. No part of it is negative. Raises ValueError without
    samples.
    """
    samples = tuple(samples)
    if not samples:
        raise ValueError("samples must have one at least")
    cost = LinearCost(sum([sample.seconds for sample in samples]) / len(samples))
    for _ in range(FIT_TURNS):
        cost = _solve(_normal(samples, cost))
    return cost


def _normal(samples: Iterable[StepSample], cost: LinearCost) -> "_Normal":
    result = _Normal()
    for sample in samples:
        result.add(sample, cost)
    return result


class _Normal:
    """The normal equations of relative errors, as plain numbers: a step adds to them while the next one waits."""

    __slots__ = ("matrix", "vector")

    def __init__(self) -> None:
        self.matrix = [0.0] * (PARTS * (PARTS + 1) // 2)
        """The upper half of a symmetric one, by rows."""
        self.vector = [0.0] * PARTS

    def add(self, sample: StepSample, cost: LinearCost) -> None:
        """Add a step, with its error relative to what it costs by ``cost``."""
        weight = 1.0 / max(cost.seconds(sample.tokens, sample.positions, sample.contexts), 1e-9)
        a, b, c = weight * sample.tokens, weight * sample.positions, weight * sample.contexts
        seconds = weight * sample.seconds
        products = weight * weight, weight * a, weight * b, weight * c, a * a, a * b, a * c, b * b, b * c, c * c
        self.matrix = [before + product for before, product in zip(self.matrix, products, strict=True)]
        wanted = weight * seconds, a * seconds, b * seconds, c * seconds
        self.vector = [before + product for before, product in zip(self.vector, wanted, strict=True)]

    def scale(self, factor: float) -> None:
        self.matrix = [factor * value for value in self.matrix]
        self.vector = [factor * value for value in self.vector]

    def __add__(self, other: "_Normal") -> "_Normal":
        both = _Normal()
        both.matrix = [a + b for a, b in zip(self.matrix, other.matrix, strict=True)]
        both.vector = [a + b for a, b in zip(self.vector, other.vector, strict=True)]
        return both

    def arrays(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The whole matrix, [PARTS, PARTS], and the vector, [PARTS]."""
        matrix = np.zeros((PARTS, PARTS))
        matrix[np.triu_indices(PARTS)] = self.matrix
        return matrix + np.triu(matrix, 1).T, np.array(self.vector)


def _solve(normal: _Normal) -> LinearCost:
    """Least squares with no negative part: of all choices of parts, fifteen, the best whose own solution has none."""
    best, best_error = np.zeros(PARTS), 0.0
    matrix, vector = normal.arrays()
    scale = 1.0 / np.sqrt(np.maximum(np.diagonal(matrix), 1e-30))
    matrix, vector = matrix * scale[:, None] * scale, vector * scale
    for size in range(1, PARTS + 1):
        for parts in map(list, combinations(range(PARTS), size)):
            # Where steps were all alike the parts cannot be told apart: then the smallest solution.
            solution = np.linalg.lstsq(matrix[np.ix_(parts, parts)], vector[parts], rcond=1e-9)[0]
            error = -float(solution @ vector[parts])  # less what is the same for all
            if (solution >= 0.0).all() and error < best_error - 1e-9 * abs(best_error):
                best, best_error = np.zeros(PARTS), error
                best[parts] = solution * scale[parts]
    return LinearCost(*map(float, best))
