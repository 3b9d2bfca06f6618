"""python -m scripts.gpu: other software at the same work; what it cannot do is not jaxgen's failure."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from scripts.gpu.result.report import Measurement
from scripts.gpu.rows import attention
from scripts.gpu.rows.attention import dense, distance, inputs_of, measure
from scripts.gpu.rows.bench import UnavailableError
from scripts.gpu.rows.comparison import compared
from scripts.gpu.rows.sizes import FULL
from scripts.gpu.rows.work import AttentionLoad
from scripts.loads.large import TINY
from tests.support.device_benches import bench


def test_what_other_software_raises_is_unavailable() -> None:
    @compared
    def unsupported() -> Measurement:
        raise RuntimeError("cuDNN does not support this")

    with pytest.raises(UnavailableError, match="RuntimeError: cuDNN does not support this"):
        unsupported()


DECODES = ((1, 70), (1, 33))


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(DECODES, id="decodes"),
        # Its programs are of no other test, and take long to compile.
        pytest.param(((9, 70), (9, 9)), id="prompts", marks=pytest.mark.full),
    ],
)
def test_dense_attention_is_that_of_the_blocks(rows: tuple[tuple[int, int], ...]) -> None:
    load = AttentionLoad("load", TINY, rows)
    q, cache, *rest = inputs_of(load)
    kernel = jax.jit(partial(REFERENCE.ragged_paged_attention, scale=TINY.head_dim**-0.5))
    assert distance(kernel(q, cache, jnp.int32(0), *rest), dense(load, q, cache, *rest)) < 2e-2


def test_attention_that_differs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(q: Any, cache: Any, *args: Any, **options: Any) -> jax.Array:
        return q * 2

    monkeypatch.setattr(attention, "kernels_for", lambda _: Kernels("wrong", wrong, REFERENCE.write_kv))
    failure = measure(bench(), AttentionLoad("load", TINY, DECODES))().failure
    assert failure is not None
    assert failure.startswith("differs from dense attention")


def test_the_plan_is_made_before_and_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def planned(q: Any, cache: Any, *args: Any, plan: Any, **options: Any) -> jax.Array:
        given.append(plan)
        return q + plan.sum().astype(q.dtype)

    def plan_attention(q: Any, cache: Any, starts: Any, lens: Any, *counts: Any) -> jax.Array:
        return lens + 1

    kernels = Kernels("planned", planned, REFERENCE.write_kv, plan_attention)
    monkeypatch.setattr(attention, "kernels_for", lambda _: kernels)
    found = measure(bench(), AttentionLoad("load", TINY, DECODES))()
    assert given
    assert None not in given
    assert found.detail["plan_seconds"] > 0
    assert found.bytes == 2 * 16 * 2 * (103 * 2 + 2 * 4)


def test_every_load_can_be_gathered() -> None:
    """Rows with as many queries each."""
    for load in FULL.attention:
        assert len({length for length, _ in load.rows}) == 1
