"""A token's attention has the same bits however it is computed: alone, in a chunk, in any company, at any place."""

import itertools
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_codes import CODE_DTYPES, encode
from pallas_kernels.ragged_paged_attention import QUERY_TILE, ragged_paged_attention_ref

T, R = 40, 12
CONTEXT, FIRST = 150, 131
"""Length of the one sequence, and the first of the positions that are looked at."""


@dataclass(frozen=True)
class Shape:
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 16
    block_size: int = 16
    dtype: str = "float32"
    window: int | None = None
    codes: str | None = None


class Sequence:
    """One sequence whose last positions can be computed in any chunks; NaN wherever nothing of it is."""

    def __init__(self, shape: Shape):
        rng = np.random.default_rng(0)
        K, D, B = shape.kv_heads, shape.head_dim, shape.block_size
        blocks = -(-CONTEXT // B)
        self._q = rng.normal(size=(CONTEXT, K * shape.group, D))
        kv = rng.normal(size=(blocks * B, 2, K, D))
        kv[CONTEXT:] = np.nan
        cache = np.full((blocks + 2, 1, 2, K, B, D), np.nan)
        self._table = np.full(blocks + 3, blocks + 1)
        self._table[:blocks] = rng.permutation(blocks)
        cache[self._table[:blocks], 0] = kv.reshape(blocks, B, 2, K, D).transpose(0, 2, 3, 1, 4)
        self._cache = encode(jnp.asarray(cache, shape.dtype), CODE_DTYPES.get(shape.codes or "", shape.dtype))
        self._dtype = shape.dtype
        self._attend = jax.jit(partial(ragged_paged_attention_ref, scale=D**-0.5, window=shape.window))

    def attend(self, *chunks: tuple[int, int]) -> list[np.ndarray]:
        """Outputs of chunks (start, end) of the sequence, those of one token first, each a row of one batch."""
        lengths = [end - start for start, end in chunks]
        q = np.zeros((T, *self._q.shape[1:]))
        q[: sum(lengths)] = np.concatenate([self._q[start:end] for start, end in chunks])
        starts = np.full(R + 1, sum(lengths), np.int32)
        starts[: len(chunks)] = np.cumsum([0, *lengths[:-1]])
        lens = np.zeros(R, np.int32)
        lens[: len(chunks)] = [end for _, end in chunks]
        out = self._attend(
            jnp.asarray(q, self._dtype),
            self._cache,
            jnp.int32(0),
            jnp.asarray(np.tile(self._table, (R, 1)), jnp.int32),
            jnp.asarray(starts),
            jnp.asarray(lens),
            jnp.int32(len(chunks)),
            jnp.int32(lengths.count(1)),
        )
        values = np.asarray(out.astype(jnp.float32))
        assert np.isfinite(values).all()
        return [values[start:end] for start, end in itertools.pairwise(starts)][: len(chunks)]


@pytest.mark.shipped
@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(kv_heads=1, group=5, head_dim=20, block_size=48),
        Shape(group=3, head_dim=80, dtype="bfloat16"),
        Shape(group=3, head_dim=32, window=20),
        Shape(group=3, head_dim=64, dtype="bfloat16", codes="int8"),
        *(
            pytest.param(shape, marks=pytest.mark.full)  # more of what is above: sizes of everything, and float16
            for shape in (
                Shape(kv_heads=1, group=1, head_dim=80),
                Shape(kv_heads=4, group=1, head_dim=64, block_size=64),
                Shape(kv_heads=2, group=3, head_dim=32),
                Shape(kv_heads=1, group=7, head_dim=128),
                Shape(kv_heads=3, group=8, head_dim=16, block_size=100),
                Shape(group=1, head_dim=32, dtype="bfloat16"),
                Shape(group=4, head_dim=64, dtype="bfloat16", block_size=64),
                Shape(group=1, head_dim=16, dtype="float16"),
            )
        ),
    ],
    ids=str,
)
def test_a_token_keeps_its_bits(shape: Shape) -> None:
    sequence = Sequence(shape)
    (whole,) = sequence.attend((FIRST, CONTEXT))
    assert len(np.unique(whole.reshape(len(whole), -1), axis=0)) == CONTEXT - FIRST
    for first in (FIRST, FIRST + 7):
        decodes = [(p, p + 1) for p in range(first, CONTEXT)][:R]
        for (position, _), got in zip(decodes, sequence.attend(*decodes), strict=True):
            np.testing.assert_array_equal(got[0], whole[position - FIRST], err_msg=f"position {position} alone")
    cuts = [
        [(140, 141), (FIRST, 140)],
        [(149, 150), (131, 132), (0, 3), (132, 149)],
        [(131, 133), (133, 131 + QUERY_TILE + 3), (131 + QUERY_TILE + 3, CONTEXT)],
        [(10, 11), (50, 70), (FIRST, FIRST + 9)],
    ]
    for cut in cuts:
        for (start, end), got in zip(cut, sequence.attend(*cut), strict=True):
            if start >= FIRST:
                np.testing.assert_array_equal(got, whole[start - FIRST : end - FIRST], err_msg=f"{cut}: {start}:{end}")
