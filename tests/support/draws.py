"""Many draws through few compiled shapes, for the tests of sampling."""

from typing import Any

import jax
import numpy as np

from jaxgen.arrays import PackedWords
from jaxgen.sampling.penalties import PenaltyState, init_penalties
from jaxgen.sampling.row_params import RowParams
from jaxgen.sampling.sampler import sample

MAX_BIAS = 4
SMALL = 7
STATE = init_penalties(1, 1)
"""For rows without penalties, of any vocabulary: it broadcasts."""
# Run on thousands of rows: what LLVM takes to optimise it comes back (tests/conftest.py).
program = jax.jit(sample, compiler_options={"xla_backend_optimization_level": 1})


def params(num_rows: int, vocab_size: int, **values: Any) -> RowParams:
    """Neutral rows, as numpy arrays to be filled in, but for ``values``."""
    layout = PackedWords(**RowParams.fields(MAX_BIAS, MAX_BIAS))
    row = layout.views(np.zeros(layout.size, np.int32))
    arrays: dict[str, Any] = {name: np.tile(one, (num_rows, *[1] * one.ndim)) for name, one in row.items()}
    made = RowParams(**arrays)
    for name, value in (RowParams.neutral_values(vocab_size) | values).items():
        getattr(made, name)[:] = value
    return made


def draw(
    logits: np.ndarray,
    p: RowParams,
    positions: np.ndarray,
    state: PenaltyState = STATE,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """Tokens of any number of rows, by programs of few shapes; ``rows`` of the state, none if None."""
    num_rows, vocab_size = logits.shape
    shape = 4096 if vocab_size == SMALL else 64
    tokens = []
    for start in range(0, num_rows, shape):
        here = slice(start, start + shape)
        missing = max(start + shape - num_rows, 0)
        piece = params(shape, vocab_size)
        for name in RowParams.__dataclass_fields__:
            getattr(piece, name)[: shape - missing] = getattr(p, name)[here]
        x = np.pad(logits[here].astype(np.float32), ((0, missing), (0, 0)))
        nowhere = np.full(num_rows, state.output_counts.shape[0])
        tokens.append(
            program(
                x,
                piece,
                state,
                np.pad((nowhere if rows is None else rows)[here], (0, missing)).astype(np.int32),
                np.pad(positions[here], (0, missing)).astype(np.int32),
            )
        )
    return np.concatenate(tokens)[:num_rows]


def small(logits: list[list[float]]) -> np.ndarray:
    """Logits for a vocabulary of ``SMALL``: more tokens, all impossible."""
    return np.array([row + [-np.inf] * (SMALL - len(row)) for row in logits])


def draw_many(logits: list[float], count: int = 4096, **values: Any) -> np.ndarray:
    """``count`` draws from one row of logits, at positions 0, 1, ..."""
    rows = np.tile(small([logits]), (count, 1))
    return draw(rows, params(count, SMALL, **{"temperature": 1.0, "seed": (7, 9)} | values), np.arange(count))


def support(logits: list[float], **values: Any) -> set[int]:
    return set(draw_many(logits, **values).tolist())


def random_rows(rng: np.random.Generator, num_rows: int, vocab_size: int) -> tuple[np.ndarray, RowParams]:
    """Logits with many ties, -inf and NaN, and all kinds of parameters."""
    x = rng.normal(size=(num_rows, vocab_size)).astype(np.float32) * rng.choice([0.5, 3, 20], (num_rows, 1))
    x = np.where(rng.random((num_rows, 1)) < 0.4, np.round(x), x)
    x[rng.random(x.shape) < 0.05] = -np.inf
    x[rng.random(x.shape) < 0.02] = np.nan
    x[:, rng.integers(vocab_size)] = 1.0
    off = rng.random((3, num_rows)) < 0.4
    return x, params(
        num_rows,
        vocab_size,
        temperature=rng.uniform(0.05, 2, num_rows),
        top_p=np.where(off[0], 1, rng.choice([1e-9, 0.05, 0.5, 0.9, 0.999], num_rows)),
        top_k=np.where(off[1], 0, rng.integers(1, vocab_size + 3, num_rows)),
        min_p=np.where(off[2], 0, rng.choice([1e-4, 0.05, 0.3, 1.0], num_rows)),
        seed=rng.integers(0, 2**32, (num_rows, 2)),
    )
