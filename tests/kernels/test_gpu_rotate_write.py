"""rotate_write for NVIDIA GPUs, interpreted: near its twin, in each form; a row with the same bits among any others."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gpu.attention.items import AttentionPlan, PackedQueries, make_plan
from pallas_kernels.gpu.norms import rms_norm
from pallas_kernels.gpu.rotate_write import rotate_write
from pallas_kernels.gpu.rotation_support import supports
from pallas_kernels.kv_codes import CODE_DTYPES, apart, by_rows, decode, encode
from pallas_kernels.rotate_write import rotate_write_ref
from tests.support.interpreted import INTERPRET, RaceError, run, watched

EPS = 1e-5
BLOCKS, BLOCK = 20, 4
NUM_CTAS = 1
TOLERANCE = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass(frozen=True)
class Case:
    """Heads of a projection, and what they go through."""

    tokens: int = 6
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    pairs: int = 32
    norm: str | None = None
    gated: bool = False
    scaled: bool = False
    dtype: str = "bfloat16"

    @property
    def static(self) -> dict[str, Any]:
        return {"heads": self.heads, "first_key": self.heads * (1 + self.gated), "eps": EPS}

    def arguments(self, count: int | None = None) -> tuple[Any, ...]:
        """Operands of which tokens from ``count`` on are NaN, and have no slot; and one of them has none."""
        rng, T, D = np.random.default_rng(0), self.tokens, self.head_dim
        count = T if count is None else count
        x = rng.normal(size=(T, (self.static["first_key"] + 2 * self.kv_heads) * D))
        x[count:] = np.nan
        slots = rng.permutation(BLOCKS * BLOCK)[:T]
        slots[count:] = BLOCKS * BLOCK
        slots[0] = BLOCKS * BLOCK
        cache = rng.normal(size=(BLOCKS, 2, 2, self.kv_heads, BLOCK, D))
        turns = rng.uniform(0, 2 * np.pi, size=(T, 1, self.pairs)).astype(np.float32)
        weights = (jnp.asarray(rng.uniform(-1, 2, size=D), self.norm or "float32") for _ in range(2))
        return (
            *(jnp.asarray(x, self.dtype), jnp.asarray(cache, self.dtype), jnp.int32(1), jnp.asarray(slots, jnp.int32)),
            jnp.int32(count),
            (jnp.cos(turns), jnp.sin(turns)) if self.pairs else None,
            None if self.norm is None else tuple(weights),
            jnp.asarray(rng.uniform(1, 2, size=(T, 1, 1)), jnp.float32) if self.scaled else None,
        )


PLAIN = Case()
EVERYTHING = Case(heads=2, kv_heads=2, pairs=24, norm="float32", gated=True, scaled=True)
kernel = partial(rotate_write, num_ctas=NUM_CTAS)


class Computed:
    """A compiled program of a case."""

    def __init__(self, case: Case, plan: AttentionPlan | None = None):
        self._case = case
        about = partial(rotate_write, **case.static, plan=plan, num_ctas=1, interpret=INTERPRET)
        self._program = jax.jit(about)

    def __call__(self, count: int) -> tuple[Any, np.ndarray]:
        """Return queries and cache of so many tokens."""
        with watched():
            q, cache = jax.block_until_ready(self._program(*self._case.arguments(count)))
        return q if isinstance(q, PackedQueries) else np.asarray(q)[:count], np.asarray(cache)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(EVERYTHING, id="everything"),
        *(
            pytest.param(case, marks=pytest.mark.full)
            for case in (replace(PLAIN, tokens=67), Case(head_dim=256, pairs=0, heads=1, dtype="float16"))
        ),
    ],
)
def test_is_near_its_twin_and_keeps_its_bits_in_any_company(case: Case) -> None:
    count, computed = case.tokens - 2, Computed(case)
    q, cache = computed(count)
    wanted_q, wanted = rotate_write_ref(*case.arguments(count), **case.static)
    tolerance = 6 * TOLERANCE[case.dtype]
    for found, twin in ((q, wanted_q[:count]), (cache, wanted)):
        assert np.isfinite(found.astype(np.float32)).all()
        np.testing.assert_allclose(found.astype(np.float32), twin.astype(jnp.float32), atol=tolerance, rtol=tolerance)
        assert (found == np.asarray(twin)).mean() > 0.98  # so that an error below half a bit is found
    np.testing.assert_array_equal(cache[:, 1, 1], np.asarray(wanted)[:, 1, 1], err_msg="values")
    np.testing.assert_array_equal(computed(1)[0], q[:1])


@pytest.mark.parametrize(
    ("codes", "case"),
    [("int8", replace(PLAIN, tokens=3)), pytest.param("fp8", EVERYTHING, marks=pytest.mark.full)],
    ids=["int8", "fp8"],
)
def test_codes_and_scales_are_those_of_the_twin(codes: str, case: Case) -> None:
    """Of tokens of zeros too, which have no scale; other bytes of the cache stay."""
    x, _, layer, _, *others = case.arguments()
    x = x.at[1].set(0)
    numbers = np.random.default_rng(1).normal(size=(2, 2, 2, case.kv_heads, 64, case.head_dim))
    rows = encode(jnp.asarray(numbers, case.dtype), CODE_DTYPES[codes])
    slots = jnp.asarray([2 * 64, 63, 64, 5, 7, 100][: case.tokens], jnp.int32)
    _, cache = run(partial(kernel, **case.static), x, apart(rows), layer, slots, *others)
    _, wanted = rotate_write_ref(x, rows, layer, slots, *others, **case.static)
    assert not np.array_equal(rows, wanted)
    np.testing.assert_array_equal(by_rows(cache)[:, :, 1], wanted[:, :, 1], err_msg="values")
    found, twin = (np.asarray(decode(one, jnp.float32)) for one in (by_rows(cache), wanted))
    np.testing.assert_allclose(found, twin, atol=0.3 if codes == "fp8" else 0.05)
    assert (found == twin).mean() > 0.98


@pytest.mark.full  # as the next two, of what the test above has in part
def test_queries_are_packed_as_their_attention_reads_them() -> None:
    """A decode, and a chunk that begins at a granule of its own."""
    case = replace(PLAIN, heads=6, kv_heads=2)
    starts, group = jnp.asarray([0, 1, 5, 5], jnp.int32), 3
    sizes: dict[str, Any] = {"T": 6, "group": group, "num_blocks": 4, "block_size": 16, "window": None}
    planned = jax.jit(partial(make_plan, **sizes, tile_groups=1))
    plan = planned(starts, jnp.asarray([9, 20, 0], jnp.int32), *map(jnp.int32, (2, 1)))
    packed, _ = Computed(case, plan)(5)
    assert isinstance(packed, PackedQueries)
    q, _ = Computed(case)(5)
    by_token = np.asarray(packed.rows)[:, np.asarray(plan.packing.place)[:5, None] + np.arange(group)]
    np.testing.assert_array_equal(by_token.swapaxes(0, 1).reshape(q.shape), q)


@pytest.mark.full
def test_a_norm_has_the_bits_of_the_norms_kernel() -> None:
    case = replace(PLAIN, norm="bfloat16", tokens=5)
    x, *others = case.arguments()
    (weight, _), count = others[5], jnp.int32(5 * 4)
    q, cache = Computed(case)(5)
    rows = run(rms_norm, x.reshape(-1, case.head_dim), weight, count, eps=EPS, num_ctas=1)
    others[5] = None
    normed = rows.reshape(5, 4, -1)[:, :2].reshape(5, -1)
    plain, _ = run(kernel, jnp.concatenate([normed, x[:, normed.shape[1] :]], axis=1), *others, **case.static)
    np.testing.assert_array_equal(plain, q)
    assert not np.array_equal(cache, others[0])


@pytest.mark.full  # as for write_kv, in test_gpu_write_kv
def test_a_dropped_wait_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two: the interpreter asks itself for the one at the end."""
    wait, dropped = plgpu.wait_smem_to_gmem, list[Any]()

    def drop_first(*args: Any, **options: Any) -> None:
        if dropped:
            wait(*args, **options)
        dropped.append(args)

    monkeypatch.setattr(plgpu, "wait_smem_to_gmem", drop_first)
    with pytest.raises(RaceError):
        Computed(replace(PLAIN, heads=4))(3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"rotary_pairs": 0}, None),
        ({"head_dim": 80, "rotary_pairs": 40}, "head_dim is 80, not a multiple of 64 up to 256"),
        ({"head_dim": 512}, "head_dim is 512"),
        ({"rotary_pairs": 12}, "12 rotary pairs are not a multiple of 8"),
        ({"dtype": "float32"}, "are float32, not bfloat16 or float16"),
    ],
)
def test_says_what_it_cannot_do(change: dict[str, Any], says: str | None) -> None:
    reason = supports(**{"head_dim": 128, "rotary_pairs": 64, "dtype": "bfloat16", **change})
    assert reason is None if says is None else says in str(reason)


def test_refuses_what_it_cannot_do() -> None:
    case = replace(PLAIN, pairs=12)
    with pytest.raises(NotImplementedError, match="12 rotary pairs"):
        kernel(*case.arguments(), **case.static)
    x, *others = PLAIN.arguments()
    with pytest.raises(NotImplementedError, match="the projection is float32, the cache bfloat16"):
        kernel(x.astype(jnp.float32), *others, **PLAIN.static)
