"""Where layers are, and in which order a program visits them, with the fewest bodies."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgen.models.layer_pattern import NO_KIND, LayerAt, Part, Repeat, alike, layers_of, length, shortest
from jaxgen.models.layer_stack import LayerHere, fold_layers
from jaxgen.models.positions import NO_WINDOW
from jaxgen.models.separate_weights import SeparateWeights
from tests.support.engines import LLAMA


def written_out(parts: tuple[Part, ...]) -> str:
    return "".join(written_out(part.parts) * part.times if isinstance(part, Repeat) else str(part) for part in parts)


def bodies(parts: tuple[Part, ...]) -> int:
    return sum(bodies(part.parts) if isinstance(part, Repeat) else 1 for part in parts)


@pytest.mark.parametrize(
    ("types", "count"),
    [
        ("A", 1),
        ("A" * 32, 1),
        ("LG" * 13, 2),
        ("LLLLLG" * 4 + "LL", 3),
        ("ccaccaccacacacac", 5),
        ("LLLG" * 3, 2),
        ("GLLLL", 2),
        ("abcab", 5),
    ],
)
def test_a_pattern_has_the_fewest_bodies(types: str, count: int) -> None:
    parts = shortest(tuple(types))
    assert written_out(parts) == types
    assert bodies(parts) == count
    assert sum(map(length, parts)) == len(types)


WINDOWS = (8, 8, None, 8, 8, None, 8)
MIXED = replace(LLAMA, num_layers=7, windows=WINDOWS)


def test_layers_have_places_by_kind_of_cache() -> None:
    assert layers_of(LLAMA) == alike(2)
    assert layers_of(MIXED, windows=False) == alike(7), "one kind, although windows differ"
    together, apart = layers_of(MIXED, 1), layers_of(MIXED, 2)
    assert [at.place for at in together] == [at.index for at in together] == list(range(7))
    assert [at.kind for at in apart] == [1, 1, 0, 1, 1, 0, 1]
    assert [at.place for at in apart] == [0, 1, 0, 2, 3, 1, 4]
    assert [at.index for at in apart] == list(range(7))
    assert tuple(at.window for at in apart) == WINDOWS


class Stack(nnx.Module):
    """Each layer has a number of its own."""

    def __init__(self, numbers: list[int], *, separate: bool):
        array = jnp.asarray(numbers, jnp.int32)
        self.number = nnx.Param(SeparateWeights(tuple(array)) if separate else array)


TWO_STACKS = [
    *(LayerAt(0, 0, 0, 1, 8), LayerAt(1, 1, 0, 1, 8), LayerAt(0, 0, 1, NO_KIND)),
    *(LayerAt(2, 2, 0, 1, 8), LayerAt(3, 3, 0, 1, 8), LayerAt(1, 1, 1, NO_KIND)),
    *(LayerAt(4, 0, 0, 0), LayerAt(2, 2, 1, NO_KIND)),
]
WINDOWS_OF_ONE_KIND = [replace(at, window=(None, 4)[number % 2]) for number, at in enumerate(alike(8))]


@pytest.mark.parametrize("separate", [False, True], ids=["scanned", "apart"])
@pytest.mark.parametrize("layers", [TWO_STACKS, WINDOWS_OF_ONE_KIND], ids=["stacks", "windows"])
def test_each_layer_is_visited_in_order_with_its_own_parameters(layers: list[LayerAt], separate: bool) -> None:
    stacks = [
        Stack([100 * stack + at.index for at in layers if at.stack == stack], separate=separate)
        for stack in sorted({at.stack for at in layers})
    ]
    want = [
        (number, 100 * at.stack + at.index, at.kind, at.place, NO_WINDOW if at.window is None else at.window)
        for number, at in enumerate(layers)
    ]
    assert visits(stacks, layers, unrolled=separate).tolist() == [list(one) for one in want]


def visits(stacks: list[Stack], layers: list[LayerAt], *, unrolled: bool = False) -> np.ndarray:
    def visit(layer: Any, here: LayerHere, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        seen, count = carry
        window = NO_WINDOW if here.window is None else here.window
        row = jnp.stack(
            [jnp.asarray(x, jnp.int32) for x in (here.number, layer.number[...], here.kind, here.place, window)]
        )
        return seen.at[count].set(row), count + 1

    run: Callable[[], Any] = jax.jit(
        lambda: fold_layers(stacks, layers, visit, (jnp.zeros((8, 5), jnp.int32), jnp.int32(0)), unrolled=unrolled)
    )
    seen, count = run()
    assert count == len(layers)
    return np.asarray(seen)
