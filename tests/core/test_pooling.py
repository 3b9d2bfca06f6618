"""Pooling of hidden states on the host: any pieces give the bits of one, and vectors of length 1."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.core.model_info import Pooling
from jaxgen.core.pooling import Pool, unit_vector

HIDDEN = (np.random.default_rng(3).standard_normal((300, 5)) * 10.0 ** np.arange(-2, 3)).astype(np.float32)


def pooled(pooling: Pooling, *pieces: np.ndarray) -> tuple[float, ...]:
    pool = Pool(pooling)
    for piece in pieces:
        pool.add(piece)
    return pool.result()


@pytest.mark.parametrize("pooling", Pooling)
@given(cuts=st.lists(st.integers(1, 299), unique=True, max_size=12))
def test_no_bit_depends_on_the_pieces(pooling: Pooling, cuts: list[int]) -> None:
    assert pooled(pooling, *np.split(HIDDEN, sorted(cuts))) == pooled(pooling, HIDDEN)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_what_is_pooled(dtype: type) -> None:
    hidden: np.ndarray = HIDDEN.astype(dtype)
    exact = hidden.astype(np.float64)
    assert pooled(Pooling.MEAN, hidden[:7], hidden[7:]) == pytest.approx(exact.mean(axis=0), rel=1e-12)
    assert pooled(Pooling.LAST, hidden[:7], hidden[7:]) == tuple(exact[-1])
    assert pooled(Pooling.CLS, hidden[:7], hidden[7:]) == tuple(exact[0])


def test_nothing_has_no_embedding() -> None:
    with pytest.raises(ValueError, match="no hidden states"):
        pooled(Pooling.MEAN)


def test_vectors_have_length_one_and_as_many_numbers_as_wanted() -> None:
    assert unit_vector((3.0, -4.0, 12.0)).tolist() == np.array([3 / 13, -4 / 13, 12 / 13], np.float32).tolist()
    assert unit_vector((3.0, -4.0, 12.0), 2).tolist() == np.array([0.6, -0.8], np.float32).tolist()
    assert unit_vector((3.0, 4.0), 2).dtype == np.float32
    assert unit_vector((0.0, 0.0)).tolist() == [0.0, 0.0]
