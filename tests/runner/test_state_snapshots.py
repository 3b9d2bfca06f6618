"""Copies of states between rows and snapshots, on the device."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.step_plan import StateCopy
from jaxgen.models.kv_cache import init_states
from jaxgen.runner.state_snapshots import DeviceSnapshots, States, compile_states
from tests.support.fake_runner import MODEL
from tests.support.hybrid import HYBRID

ROWS, SNAPSHOTS = 3, 2


def config(num_snapshots: int) -> EngineConfig:
    cache = CacheConfig(2, 8, num_snapshots=num_snapshots)
    return EngineConfig(cache, SchedulerConfig(8, ROWS, 8), seed=0, max_logit_bias=1)


def rows_from(first: int) -> States:
    """States of which every number of a row is the row's own: ``first`` and those after it."""

    def filled(array: jax.Array) -> jax.Array:
        numbers = np.arange(first, first + ROWS).reshape(-1, *[1] * (array.ndim - 1))
        return array + jnp.asarray(numbers, array.dtype)

    return jax.tree.map(filled, init_states(HYBRID, ROWS))


def numbers_of(states: States) -> list[list[float]]:
    """Which numbers each row has, in all states."""
    by_row = [np.asarray(array, np.float32).reshape(ROWS, -1) for array in states]
    return [sorted({float(number) for array in by_row for number in array[row]}) for row in range(ROWS)]


def test_a_row_gets_the_state_that_was_taken_of_another() -> None:
    snapshots = DeviceSnapshots(HYBRID, config(SNAPSHOTS), compile_states(HYBRID, config(SNAPSHOTS)))
    snapshots.take(rows_from(10), [StateCopy(2, 0), StateCopy(1, 1)])
    loaded = snapshots.load(rows_from(20), [StateCopy(0, 1), StateCopy(1, 0)])
    assert numbers_of(loaded) == [[11.0], [12.0], [22.0]]
    assert numbers_of(snapshots.load(rows_from(30), [])) == [[30.0], [31.0], [32.0]]
    snapshots.reset()
    assert numbers_of(snapshots.load(rows_from(20), [StateCopy(2, 1)])) == [[20.0], [21.0], [0.0]]


def test_there_are_no_programs_without_snapshots() -> None:
    assert compile_states(HYBRID, config(0)) is None
    assert compile_states(MODEL, config(SNAPSHOTS)) is None
