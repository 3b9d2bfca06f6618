"""Programs of several devices: parameters and caches are each device's own, all else is the same on each."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxgen.models.rank_sum import sum_in_rank_order
from jaxgen.runner.devices import Devices, on_each
from jaxgen.runner.program import Program
from tests.support.hub_configs import described

WIDTH = 4


def of_two() -> Devices:
    devices = Devices.of(replace(described("Llama-3.1-8B"), num_devices=2))
    assert devices is not None
    return devices


def test_each_device_computes_with_its_own_parameters() -> None:
    def step(params: dict[str, Array], x: Float[Array, " W"]) -> tuple[dict[str, Array], Float[Array, " W"]]:
        partial_sum = (x * params["weight"])[None]
        return {"weight": params["weight"] + 1}, sum_in_rank_order(partial_sum, jnp.float32)[0]

    devices = of_two()
    shape = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)
    program = Program(step, ({"weight": shape}, shape), donated=(0,), devices=devices)
    params = devices.on_each(lambda rank: {"weight": jnp.full(WIDTH, rank + 1, jnp.float32)})
    changed, total = program.compile()(params, on_each(devices, lambda: jnp.arange(WIDTH, dtype=jnp.float32)))
    np.testing.assert_array_equal(total, 3 * np.arange(WIDTH))
    np.testing.assert_array_equal(changed["weight"], [2] * WIDTH + [3] * WIDTH)
    assert params["weight"].is_deleted(), "updated in place"
    assert program.results[1] == shape


def test_one_device_needs_no_mesh() -> None:
    assert Devices.of(described("Llama-3.1-8B")) is None
    assert on_each(None, lambda: 3) == 3
