"""Places that callers share."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.server.shares import Shares


class FullError(Exception):
    pass


def test_a_caller_alone_may_have_all_and_another_still_gets_its_share() -> None:
    shares = Shares(4)
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(shares.place("a", FullError()))
        with pytest.raises(FullError):
            held.enter_context(shares.place("a", FullError()))
        for _ in range(2):
            held.enter_context(shares.place("b", FullError()))
        with pytest.raises(FullError):
            held.enter_context(shares.place("b", FullError()))
        assert (shares.held("a"), shares.held("b")) == (4, 2)
    assert (shares.held("a"), shares.held("b")) == (0, 0)


@given(st.integers(1, 9), st.lists(st.sampled_from("abcdef"), max_size=60))
def test_nobody_is_kept_out_and_the_sum_is_bounded(limit: int, asked: list[str]) -> None:
    shares = Shares(limit)
    with ExitStack() as held:
        for caller in asked:
            try:
                held.enter_context(shares.place(caller, FullError()))
            except FullError:
                assert shares.held(caller) >= max(1, limit // 6)
        callers = set(asked)
        total = sum(shares.held(caller) for caller in callers)
        assert total <= limit * sum(1 / n for n in range(1, len(callers) + 1)) + len(callers)
