"""Gated delta nets: equal to the recurrence in float64, and with the same bits however a sequence is cut."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.delta_proof import empty_state, exact_gated_delta, prove_gated_delta
from pallas_kernels.gated_delta import DeltaState, gated_delta_ref
from tests.support.delta_sequences import Sequence, Sizes
from tests.support.native import native

DTYPES = ("float32", "bfloat16")
KERNELS = ("ref", "native")
ROWS, TOKENS = 3, 48
_INTEGERS = ("layer", "rows", "query_starts", "context_lens", "num_rows")
ROW, OTHER = 1, 2
"""The row that is looked at, and the one beside it."""


SMALL = Sizes(2, 4, 8, 16, 16)
TINY = Sizes(2, 4, 8, 16, 4)
ODD = Sizes(1, 2, 9, 112, 16)
"""Values in 7 vectors, which no tile of a product has."""


def kernel(which: str) -> Callable[..., Any]:
    return gated_delta_ref if which == "ref" else native().gated_delta


@cache
def program(which: str) -> Callable[..., Any]:
    return jax.jit(kernel(which))


class Computed:
    """A row of the state that computes pieces of a sequence, in company of another row's tokens."""

    def __init__(self, which: str, sizes: Sizes, sequence: Sequence) -> None:
        self._run, self._sizes, self._sequence = program(which), sizes, sequence
        self._company = Sequence.draw(sizes, 5, sequence.x.dtype.name, seed=1)

    def piece(self, state: DeltaState, first: int, end: int, company: int = 2) -> tuple[np.ndarray, DeltaState]:
        """Return what the tokens read, and the state after them. Chunks after ``company`` tokens of another row."""
        assert company + end - first <= TOKENS
        arrays = []
        for own, other in zip(self._inputs(self._sequence), self._inputs(self._company), strict=True):
            array = np.full((TOKENS, own.shape[1]), np.nan, own.dtype)
            array[: company + end - first] = np.concatenate([other[:company], own[first:end]])
            arrays.append(array)
        got, after = self._run(
            *arrays,
            self._sequence.a_log,
            self._sequence.dt_bias,
            state,
            jnp.int32(1),
            np.cumsum([0, company, end - first, 0]).astype(np.int32),
            np.array([company, end, 0], np.int32),
            np.array([OTHER, ROW, 0], np.int32),
            jnp.int32(2),
        )
        return np.asarray(got)[company : company + end - first], after

    @staticmethod
    def _inputs(sequence: Sequence) -> tuple[np.ndarray, ...]:
        return sequence.x, sequence.a, sequence.b

    def blank(self) -> DeltaState:
        return empty_state(ROWS, 2, **vars(self._sizes), blank=np.nan)

    def with_blanks(self, state: DeltaState, computed: int) -> DeltaState:
        """The state with NaN wherever a sequence of that many tokens keeps nothing."""
        arrays, used = [np.full_like(part, np.nan) for part in state], computed % self._sizes.span
        starts, keys, changes, decays = (array[ROW, 1] for array in arrays)
        of_row = DeltaState(*(np.asarray(part)[ROW, 1] for part in state))
        if computed >= self._sizes.span:
            starts[:] = of_row.starts
        keys[..., :used], decays[:, :used] = of_row.keys[..., :used], of_row.decays[:, :used]
        changes[:, :used] = of_row.changes[:, :used]
        return DeltaState(*(jnp.asarray(array) for array in arrays))


def assert_same(got: DeltaState, want: DeltaState) -> None:
    for name, one, other in zip(DeltaState._fields, got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[ROW, 1], np.asarray(other)[ROW, 1], err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_the_recurrence(dtype: str) -> None:
    """Native kernels are held to the same when they are compiled."""
    prove_gated_delta(kernel("ref"), **vars(SMALL), dtype=dtype)


@pytest.mark.parametrize("which", KERNELS)
def test_a_long_sequence_stays_near_the_recurrence(which: str) -> None:
    """Over many spans, with heads that forget at once and heads that never do."""
    sequence, out = Sequence.draw(SMALL, 600, "float32"), []
    sequence.a_log[:] = np.log([1e-4, 0.05, 1.0, 16.0])
    computed = Computed(which, SMALL, sequence)
    state = computed.blank()
    for first in range(0, 600, 40):
        read, state = computed.piece(state, first, first + 40)
        out.append(read)
    wide = [np.asarray(part, np.float64) for part in vars(sequence).values()]
    want = exact_gated_delta(*wide, key_heads=SMALL.key_heads, key_dim=SMALL.key_dim)
    np.testing.assert_allclose(np.concatenate(out), want, atol=2e-6)


@pytest.mark.shipped
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("which", "sizes", "tokens"), [("ref", TINY, 10), ("native", ODD, 34)])
def test_every_cut_gives_the_same_bits(which: str, sizes: Sizes, tokens: int, dtype: str) -> None:
    """From each number of computed tokens to each other: the tokens' bits, and what is kept, are those of tokens that
    were computed one by one. So are those of any cuts, one after the other."""
    computed = Computed(which, sizes, Sequence.draw(sizes, tokens, dtype))
    states, reads = [computed.blank()], []
    for first in range(tokens):
        read, state = computed.piece(states[-1], first, first + 1)
        states.append(computed.with_blanks(state, first + 1))
        reads.append(read)
    one_by_one = np.concatenate(reads)
    for first in range(tokens):
        for end in range(first + 2, tokens + 1):
            read, state = computed.piece(states[first], first, end, company=end % 3)
            np.testing.assert_array_equal(read, one_by_one[first:end], err_msg=f"tokens {first} to {end}")
            assert_same(computed.with_blanks(state, end), states[end])


@pytest.mark.parametrize("which", KERNELS)
def test_other_rows_and_layers_stay_as_they_are(which: str) -> None:
    computed = Computed(which, SMALL, Sequence.draw(SMALL, 17, "float32"))
    before = empty_state(ROWS, 2, **vars(SMALL), blank=7.0)
    _, after = computed.piece(before, 0, 17, company=0)
    for part in after:
        array = np.array(part)
        assert not (array[ROW, 1] == 7).all()
        array[ROW, 1] = 7
        assert (array == 7).all()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"layer": 2}, "the layer does not exist"),
        ({"rows": [ROWS]}, "a chunk's state does not exist"),
        ({"query_starts": [0, 3]}, "do not ascend within the tokens"),
        ({"context_lens": [1]}, "a chunk is longer than its context"),
        ({"num_rows": 2}, "more chunks than there are rows"),
        ({"sizes": Sizes(2, 4, 8, 16, 4)}, "spans and values do not fill vectors"),
        ({"x": np.zeros((2, 90))}, "the inputs do not fit the state"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], reason: str) -> None:
    sizes = changed.pop("sizes", SMALL)
    sequence = Sequence.draw(sizes, 2, "float32")
    given = vars(sequence) | {"state": empty_state(ROWS, 2, **vars(sizes))}
    given |= {"layer": 1, "rows": [ROW], "query_starts": [0, 2], "context_lens": [2], "num_rows": 1} | changed
    arrays: dict[str, Any] = {
        name: value if name == "state" else jnp.asarray(value, jnp.int32 if name in _INTEGERS else jnp.float32)
        for name, value in given.items()
    }
    # By the call, or where its result is waited for.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=reason):
        jax.block_until_ready(native().gated_delta(**arrays))


def test_other_dtypes_are_refused() -> None:
    sequence = Sequence.draw(SMALL, 2, "float16")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        Computed("native", SMALL, sequence).piece(empty_state(ROWS, 2, **vars(SMALL)), 0, 2)
