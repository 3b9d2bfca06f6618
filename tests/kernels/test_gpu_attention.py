"""The attention kernels for Hopper and Ampere, interpreted, against float64 and against themselves, to the bit; no
races."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gpu.attention import config as attention_config
from pallas_kernels.gpu.attention import fetch as attention_fetch
from pallas_kernels.gpu.attention import items as attention_items
from pallas_kernels.gpu.attention import tile as attention_tile
from pallas_kernels.gpu.attention import walk as attention_walk
from pallas_kernels.gpu.attention.config import Walk, WorkItem
from pallas_kernels.gpu.attention.items import KV_TILE, PIECE_TOKENS, WARPGROUP_ROWS, best_tile_groups
from pallas_kernels.gpu.attention.ragged_paged_attention import (
    UnsupportedError,
    plan_attention,
    ragged_paged_attention,
    supports,
)
from pallas_kernels.gpu.persistent import REGISTERS, Ref
from pallas_kernels.kv_codes import apart, decode
from scripts.gpu.rows.ragged import cancelling
from tests.support.attention_cases import (
    TOLERANCE,
    Case,
    Inputs,
    expected,
    make_inputs,
    run,
)
from tests.support.interpreted import INTERPRET, RaceError, watched

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")
# The interpreter's, of keys past a context, which are NaN.
P = PIECE_TOKENS
SMALL = Case(rows=((1, 70), (5, 130)), heads=8, kv_heads=2, head_dim=64, block_size=64, dtype="bfloat16", padding=1)
EVERYTHING = replace(SMALL, rows=((1, P + 70), (1, 9), (37, 330)), window=300, soft_cap=5.0, sinks=True)
LITTLE = replace(SMALL, rows=((1, P + 70), (1, 9), (20, 150)), heads=4, window=100, soft_cap=5.0, sinks=True)
"""Two pieces, more than one tile of queries, keys before the window: of each as little as there can be."""
SIZES_IN_PAIRS = [
    replace(SMALL, heads=2 * group, head_dim=head_dim, block_size=block_size, sinks=block_size != 64)
    for group, head_dim, block_size in ((1, 80, 16), (7, 96, 128), (8, 128, 32), (3, 256, 64), (16, 64, 32))
] + [replace(SMALL, heads=2 * 64, dtype="float16")]
KERNELS = 3
"""Of one call: the walk in pieces, their combination, the walk of whole contexts."""


NUM_CTAS = 2
"""So few that each takes many items."""
attention = partial(ragged_paged_attention, num_ctas=NUM_CTAS, interpret=INTERPRET)
on_ampere = partial(attention, bulk=False, wgmma=False)
on_blackwell = partial(attention, wgmma=False)


def attend(
    case: Case, inputs: Inputs, kernel: Callable[..., Any] = attention, num_kernels: int = KERNELS
) -> np.ndarray:
    """Outputs of the rows' tokens; RaceError if there was a race."""
    with watched() as kernels:
        out = run(kernel, case, inputs)
    assert len(kernels) == num_kernels
    assert np.isfinite(out).all()
    return out


def check(case: Case, kernel: Callable[..., Any] = attention) -> None:
    inputs = make_inputs(case)
    got = attend(case, inputs, kernel)
    np.testing.assert_allclose(got, expected(case, inputs)[: len(got)], atol=TOLERANCE[case.dtype] / 2, rtol=0)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(LITTLE, id="little of everything"),
        pytest.param(
            replace(SMALL, window=20, soft_cap=5.0, sinks=True), id="window, soft cap, sinks", marks=pytest.mark.full
        ),
        pytest.param(
            replace(SMALL, rows=((1, P), (1, P + 1), (1, 2 * P + 1), (70, 2 * P), (3, 64), (2, 65)), padding=0),
            id="boundaries",
            marks=pytest.mark.full,
        ),
        pytest.param(replace(SMALL, rows=((1, 3 * P), (40, P + 30)), window=P), id="window", marks=pytest.mark.full),
        pytest.param(replace(SMALL, rows=((1, 70),) * 9), id="decodes only", marks=pytest.mark.full),
        pytest.param(replace(SMALL, rows=()), id="no rows", marks=pytest.mark.full),
        *(pytest.param(case, marks=pytest.mark.full) for case in SIZES_IN_PAIRS),
    ],
)
def test_matches_the_definition(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(replace(LITTLE, kv_heads=1, heads=4), id="little of everything"),
        pytest.param(EVERYTHING, id="everything", marks=pytest.mark.full),
        *(
            pytest.param(case, marks=pytest.mark.full)
            for case in (
                # That a batch may be empty is the plan's, which all share.
                *SIZES_IN_PAIRS[:3],
                replace(SMALL, heads=2 * 64, block_size=16, dtype="float16"),
            )
        ),
    ],
)
def test_matches_the_definition_on_ampere(case: Case) -> None:
    check(case, on_ampere)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(replace(LITTLE, kv_heads=1, heads=4), id="little of everything"),
        pytest.param(EVERYTHING, id="everything", marks=pytest.mark.full),
        *(
            pytest.param(case, marks=pytest.mark.full)
            for case in (replace(SMALL, head_dim=128), replace(SMALL, block_size=16, sinks=True))
        ),
    ],
)
def test_matches_the_definition_on_blackwell(case: Case) -> None:
    """What is not as on Ampere: copies in bulk, and which of them are waited for."""
    check(case, on_blackwell)


def on_codes(q: Any, cache: Any, *args: Any, **options: Any) -> Any:
    return attention(q, apart(cache), *args, **options)


def on_numbers(q: Any, cache: Any, *args: Any, **options: Any) -> Any:
    return attention(q, decode(cache, q.dtype), *args, **options)


@pytest.mark.full  # all kernels, twice
@pytest.mark.parametrize(
    "case",
    [replace(LITTLE, kv_heads=1, codes="int8"), replace(SMALL, codes="fp8", heads=6, head_dim=128, block_size=128)],
    ids=["int8", "fp8"],
)
def test_codes_have_the_bits_of_the_numbers_that_they_stand_for(case: Case) -> None:
    inputs = make_inputs(case)
    got = attend(case, inputs, on_codes)
    np.testing.assert_allclose(got, expected(case, inputs)[: len(got)], atol=TOLERANCE[case.dtype] / 2, rtol=0)
    np.testing.assert_array_equal(got, attend(case, inputs, on_numbers))


MOST_ROWS, TOKENS = 6, 24


def arranged(case: Case, inputs: Inputs, chunks: list[tuple[int, int, int]], num_decodes: int) -> tuple[Case, Inputs]:
    """Chunks (row of ``inputs``, first, last + 1 of its queries) as the rows of a batch of one shape for all."""
    lens, starts = np.zeros(MOST_ROWS, np.int32), np.zeros(MOST_ROWS + 1, np.int32)
    tables = np.full((MOST_ROWS, inputs.tables.shape[1]), len(inputs.cache) - 1, np.int32)
    q = np.zeros((TOKENS, *inputs.q.shape[1:]), np.float32)
    rows = []
    for i, (row, first, end) in enumerate(chunks):
        begin, missing = inputs.starts[row] + first, inputs.starts[row + 1] - inputs.starts[row] - end
        starts[i + 1 :] = starts[i] + end - first
        q[starts[i] : starts[i + 1]] = inputs.q[begin : begin + end - first]
        lens[i], tables[i] = inputs.lens[row] - missing, inputs.tables[row]
        rows.append((end - first, int(lens[i])))
    padded = replace(inputs, q=q, tables=tables, starts=starts, lens=lens, num_decodes=num_decodes)
    return replace(case, rows=tuple(rows)), padded


@pytest.fixture
def _alike_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies with BLAS, which adds up some rows in another order than others: wgmma does not."""

    def matmul(a: np.ndarray, b: np.ndarray, dtype: Any) -> np.ndarray:
        return np.einsum("ik,kj->ij", a.astype(dtype), b.astype(dtype), optimize=False)

    monkeypatch.setattr(np, "matmul", matmul)


class Outputs:
    """Of the queries of a case's first row, around a piece's end, however they are arranged."""

    def __init__(self, case: Case, kernel: Callable[..., Any] = attention):
        self._case, self._inputs, self._kernel = case, cancelling(case), kernel
        self.length = case.rows[0][0]
        self.whole = self.of([(0, 0, self.length)])
        assert len(np.unique(self.whole.reshape(self.length, -1), axis=0)) == self.length

    def of(self, chunks: list[tuple[int, int, int]], num_decodes: int = 0) -> np.ndarray:
        return attend(*arranged(self._case, self._inputs, chunks, num_decodes), self._kernel)

    def check_among_others(self) -> None:
        """All of them again, after one of them as a decode."""
        mixed = self.of([(0, 1, 2), (1, 6, 7), (1, 0, 6), (0, 0, self.length)], num_decodes=2)
        np.testing.assert_array_equal(mixed[8:], self.whole, err_msg="among others")
        np.testing.assert_array_equal(mixed[0], self.whole[1], err_msg="decode among others")


BITS = replace(SMALL, rows=((5, 2 * P + KV_TILE + 3), (7, 150)), heads=6)
"""Three pieces, of which the last has two tiles: with fewer, adding them up in one go would give the same."""


@pytest.mark.usefixtures("_alike_rows")
def test_a_decode_has_the_bits_of_a_chunk() -> None:
    Outputs(replace(BITS, heads=3, kv_heads=1)).check_among_others()


@pytest.mark.full  # more arrangements than the test above
@pytest.mark.usefixtures("_alike_rows")
def test_a_token_keeps_its_bits() -> None:
    """At once, alone or not, one by one in either way, and in chunks."""
    outputs = Outputs(BITS)
    length, whole = outputs.length, outputs.whole
    single = [(0, i, i + 1) for i in range(length)]
    np.testing.assert_array_equal(outputs.of(single, num_decodes=length), whole, err_msg="decodes")
    np.testing.assert_array_equal(outputs.of(single), whole, err_msg="chunks of one")
    np.testing.assert_array_equal(outputs.of([(1, 0, 7), (0, 0, 3), (0, 3, length)])[7:], whole, err_msg="chunks")
    outputs.check_among_others()


@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        (replace(BITS, rows=((5, P + 3), (7, 150)), window=70, sinks=True), attention),
        (replace(BITS, window=P), attention),
        (replace(BITS, head_dim=256), attention),
        (BITS, on_ampere),
    ],
    ids=["window, sinks", "window of a piece", "head_dim 256", "Ampere"],
)
@pytest.mark.usefixtures("_alike_rows")
def test_a_decode_has_the_bits_of_a_chunk_with(case: Case, kernel: Callable[..., Any]) -> None:
    Outputs(case, kernel).check_among_others()


@pytest.mark.full
def test_a_plan_made_before_changes_nothing() -> None:
    """By the kernel that makes it."""
    inputs = make_inputs(SMALL)

    def planned(
        q: Any,
        cache: Any,
        layer: Any,
        tables: Any,
        *rows: Any,
        scale: float,
        window: int | None,
        soft_cap: float | None,
    ) -> Any:
        plan = plan_attention(q, cache, *rows, window=window, in_kernel=True, interpret=INTERPRET)
        starts, lens, *counts = rows
        unread = [jnp.zeros_like(x) for x in (starts, *counts)]
        return attention(
            q, cache, layer, tables, unread[0], lens, *unread[1:], scale=scale, soft_cap=soft_cap, plan=plan
        )

    np.testing.assert_array_equal(attend(SMALL, inputs, planned, KERNELS + 1), attend(SMALL, inputs))


SIZES = replace(SMALL, rows=((1, 9), (30, P + 100), (50, 70)), heads=6)


@pytest.mark.full  # each size interprets all kernels anew
@pytest.mark.parametrize("case", [SIZES, replace(SIZES, window=70)], ids=["pieces", "window"])
@pytest.mark.usefixtures("_alike_rows")
def test_the_size_of_tiles_changes_no_bit(case: Case) -> None:
    inputs, enough = make_inputs(case), 8
    sizes = [best_tile_groups(len(inputs.q), 3, case.kv_heads, case.head_dim, n) for n in (NUM_CTAS, enough)]
    assert sizes == [2, 1]
    many = attend(case, inputs, partial(ragged_paged_attention, num_ctas=enough, interpret=INTERPRET))
    np.testing.assert_allclose(many, expected(case, inputs)[: len(many)], atol=TOLERANCE[case.dtype], rtol=0)
    np.testing.assert_array_equal(many, attend(case, inputs))


@pytest.mark.parametrize("window", [None, 1, 64, 65, 130])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_a_tile_that_all_see_needs_no_mask(group: int, window: int | None) -> None:
    walk = Walk(1, group, 64, 64, jnp.bfloat16, 1.0, window, None, 1, False, 1, True, True, REGISTERS, None)
    for first in (0, 1, 62, 63, 64, 65, 190, 300):
        for head in range(group):
            origin = first * group + head
            query = (origin + np.arange(WARPGROUP_ROWS))[:, None] // group
            for tile in range(6):
                key = tile * KV_TILE + np.arange(KV_TILE)
                want = ((key <= query) & (window is None or key > query - window)).all()
                assert bool(attention_tile.all_seen(walk, jnp.int32(origin), jnp.int32(tile))) == want


@pytest.mark.full  # all kernels, twice
def test_too_many_pieces_are_walked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same bits: contexts that share blocks may have more pieces than the cache has room for."""
    case = replace(SMALL, rows=((1, 70), (1, P + 9)), heads=4, kv_heads=1, padding=0)
    inputs = make_inputs(case)
    want = attend(case, inputs)
    np.testing.assert_allclose(want, expected(case, inputs), atol=TOLERANCE[case.dtype] / 2, rtol=0)
    monkeypatch.setattr(attention_items, "piece_capacity", lambda *_: 2)
    fewer = replace(inputs, tables=np.pad(inputs.tables, ((0, 0), (0, 1))))  # another shape, so that it is traced anew
    np.testing.assert_array_equal(attend(case, fewer), want)


def traced_anew(*args: Any, **options: Any) -> Any:
    """The kernel with what a test has replaced in it: jax keeps traces by function."""
    return attention(*args, **options)


@pytest.mark.full  # as for write_kv, in test_gpu_write_kv
def test_a_dropped_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(SMALL, rows=((1, 200),), heads=2, kv_heads=1)

    def no_wait(full: Ref) -> None:
        """Goes on at once."""

    monkeypatch.setattr(attention_walk, "await_tile", no_wait)
    with pytest.raises(RaceError):
        attend(case, make_inputs(case), traced_anew)


@pytest.mark.full  # as for write_kv, in test_gpu_write_kv
def test_a_wrong_block_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(SMALL, rows=((1, 200), (3, 150)))
    inputs = make_inputs(case)
    right = attention_config.slots_of

    def wrong(walk: Walk, refs: dict[str, Ref], item: WorkItem, tile: object, copy: int) -> object:
        return right(walk, refs, item, 0, copy)

    monkeypatch.setattr(attention_fetch, "slots_of", wrong)
    got = attend(case, inputs, traced_anew)
    assert np.abs(got[:4] - expected(case, inputs)[:4]).max(axis=(1, 2)).min() > 10 * TOLERANCE["bfloat16"]


FACTS = {"heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 64, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "float32"}, "float32, not bfloat16 or float16"),
        ({"head_dim": 192}, "head_dim is 192"),
        ({"head_dim": 512}, "head_dim is 512"),
        ({"head_dim": 256, "wgmma": False}, "head_dim is 256"),
        ({"block_size": 8}, "block_size is 8"),
        ({"block_size": 100}, "block_size is 100"),
        ({"coded": True, "block_size": 32}, "block_size is 32, not a multiple of 64"),
        ({"coded": True, "kv_heads": 1}, "1 kv heads of blocks of 64 tokens are not a multiple of 128 numbers"),
        ({"coded": True, "wgmma": False}, "on compute capability 9.0 only"),
        ({"heads": 33}, "33 query heads are not a multiple of 8 kv heads"),
        ({"heads": 71, "kv_heads": 1}, "71 query heads on 1 kv heads are more than 64 on each"),
    ],
)
def test_says_what_it_cannot_do(change: dict[str, object], says: str) -> None:
    assert supports(**FACTS) is None  # type: ignore[arg-type]
    assert says in str(supports(**{**FACTS, **change}))  # type: ignore[arg-type]


def test_refuses_what_it_cannot_do() -> None:
    case = replace(SMALL, dtype="float32")
    with pytest.raises(UnsupportedError, match="float32"):
        run(attention, case, make_inputs(case))
    case = replace(SMALL, window=8, window_operand=True)
    with pytest.raises(UnsupportedError, match="window is an array"):
        run(attention, case, make_inputs(case))
