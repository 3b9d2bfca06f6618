"""Arrays as words: what is written on the host is what a program reads."""

import jax
import numpy as np
import pytest

from jaxgen.arrays import PackedWords


def test_host_views_and_device_split_agree_for_every_type_and_shape() -> None:
    layout = PackedWords(a=((), np.float32), b=((2, 3), np.uint32), c=((4,), np.int32), d=((0,), np.float32))
    words = np.zeros((5, layout.size), np.int32)
    rng = np.random.default_rng(0)
    written = []
    for row in words:
        views = layout.views(row)
        views["a"][()] = rng.normal()
        views["b"][:] = rng.integers(0, 2**32, (2, 3), np.uint32)
        views["c"][:] = rng.integers(-5, 5, 4)
        written.append({name: view.copy() for name, view in views.items()})
    for name, array in jax.jit(layout.split)(words).items():
        expected = np.stack([row[name] for row in written])
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(array, expected)


def test_a_type_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="b must have a 32-bit type"):
        PackedWords(a=((), np.int32), b=((2,), np.bool_))
