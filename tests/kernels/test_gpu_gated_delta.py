"""Gated delta nets for Hopper, interpreted: near float64; the same bits however a sequence is cut."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.delta_proof import empty_state, exact_gated_delta, prove_gated_delta
from pallas_kernels.gpu.delta_support import HEAD, SPAN, supports
from pallas_kernels.gpu.gated_delta import gated_delta
from tests.support.delta_sequences import Sequence, Sizes
from tests.support.interpreted import INTERPRET, watched

SIZES = Sizes(key_heads=1, heads=2, key_dim=HEAD, value_dim=HEAD, span=SPAN)
TOKENS = SPAN + 11
CUTS = [(TOKENS, 1, SPAN - 1), (TOKENS, 9, SPAN), (TOKENS, SPAN + 3, TOKENS), (TOKENS, TOKENS, TOKENS)]
"""Tokens that each of three rows has computed after each step: all at once; one, then pieces within and across spans;
up to a border, and a decode that ends a span."""
LAYER, OTHER = 1, 0


class Rows:
    """Rows that all compute the same sequence, each in other pieces."""

    def __init__(self, run: Any) -> None:
        self.run, self.sequence = run, Sequence.draw(SIZES, TOKENS, "bfloat16")
        self.state = empty_state(len(CUTS[0]), 2, **vars(SIZES), blank=np.nan)
        self.reads: list[list[np.ndarray]] = [[] for _ in CUTS[0]]

    def step(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Compute the rows' tokens between two numbers of them. Padding is NaN."""
        chunks = [(row, *ends) for row, ends in enumerate(zip(before, after, strict=True)) if ends[0] < ends[1]]
        lengths, padding = [end - first for _, first, end in chunks], [0] * (len(before) - len(chunks))
        arrays = []
        for whole in (self.sequence.x, self.sequence.a, self.sequence.b):
            array = np.full((2 * TOKENS + 3, whole.shape[1]), np.nan, whole.dtype)
            array[: sum(lengths)] = np.concatenate([whole[first:end] for _, first, end in chunks])
            arrays.append(array)
        got, self.state = self.run(
            *(*arrays, self.sequence.a_log, self.sequence.dt_bias, self.state, jnp.int32(LAYER)),
            np.cumsum([0, *lengths, *padding], dtype=np.int32),
            np.array([end for *_, end in chunks] + padding, np.int32),
            np.array([row for row, *_ in chunks] + padding, np.int32),
            jnp.int32(len(chunks)),
        )
        for (row, *_), read in zip(chunks, np.split(np.asarray(got), np.cumsum(lengths)), strict=False):
            self.reads[row].append(read)

    @classmethod
    def computed(cls, run: Any) -> "Rows":
        rows = cls(run)
        for before, after in zip([(0,) * len(CUTS[0]), *CUTS], CUTS, strict=False):
            rows.step(before, after)
        return rows

    def kept(self, row: int) -> list[np.ndarray]:
        """Return what a row's state has to keep after all tokens."""
        starts, keys, changes, decays = (np.asarray(part)[row, LAYER] for part in self.state)
        used = TOKENS % SPAN
        return [starts, keys.reshape(-1, SPAN, HEAD)[:, :used], changes[:, :used], decays[:, :used]]


@cache
def interpreted() -> Any:
    # XLA would not round a number to the first of two. LLVM, which compiles the kernel for a GPU, does.
    options = {"xla_allow_excess_precision": False}
    return jax.jit(partial(gated_delta, num_ctas=1, interpret=INTERPRET), compiler_options=options)


def test_every_cut_gives_the_same_bits_near_float64() -> None:
    with watched():
        rows = Rows.computed(interpreted())
    whole, *others = (np.concatenate(reads) for reads in rows.reads)
    for number, other in enumerate(others, 1):
        np.testing.assert_array_equal(whole, other)
        for one, kept in zip(rows.kept(0), rows.kept(number), strict=True):
            np.testing.assert_array_equal(one, kept)
    wide = [np.asarray(part, np.float64) for part in vars(rows.sequence).values()]
    want = exact_gated_delta(*wide, key_heads=SIZES.key_heads, key_dim=HEAD)
    np.testing.assert_allclose(whole.astype(np.float64), want, rtol=2**-8, atol=2e-5)
    assert (whole == want.astype(whole.dtype)).mean() > 0.98  # so that an error below half a bit is found
    for part in rows.state:
        assert np.isnan(np.asarray(part)[:, OTHER]).all()


@pytest.mark.full  # many pieces, interpreted
def test_the_proof_finds_it_right() -> None:
    with watched():
        prove_gated_delta(partial(gated_delta, num_ctas=1, interpret=INTERPRET), **vars(SIZES), dtype="bfloat16")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"capability": 8}, "compute capability 8 has no wgmma"),
        ({"dtype": "float16"}, "inputs of float16 are not bfloat16"),
        ({"key_dim": 64}, "heads of 64 keys and 128 values are not 128 of each"),
        ({"span": 16}, "spans of 16 positions are not 32"),
    ],
)
def test_what_it_does_not_take_has_a_reason(changed: dict[str, Any], reason: str | None) -> None:
    sizes: dict[str, Any] = {"key_dim": HEAD, "value_dim": HEAD, "span": SPAN, "dtype": "bfloat16"}
    found = supports(**sizes | changed)
    assert found is None if reason is None else reason in str(found)


def test_what_it_does_not_take_is_refused() -> None:
    given: list[Any] = [jnp.asarray(part) for part in vars(Sequence.draw(SIZES, 2, "float32")).values()]
    given += [empty_state(1, 1, **vars(SIZES)), *(jnp.asarray(part, jnp.int32) for part in (0, [0, 2], [2], [0], 1))]
    with pytest.raises(NotImplementedError, match="inputs of float32"):
        jax.jit(gated_delta)(*given)
