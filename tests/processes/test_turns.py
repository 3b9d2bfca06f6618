"""Whose work is next, by the time that callers' work took."""

from jaxgen.processes.turns import HALF_LIFE, MEMORY, Turns


def test_time_that_was_used_counts_less_as_it_passes() -> None:
    turns = Turns()
    turns.took("a", 10.0, 0.0, at_limit=False)
    turns.took("b", 3.0, 0.0, at_limit=False)
    assert turns.in_order("abc", 0.0) == ["c", "b", "a"]
    turns.took("b", 3.0, 2 * HALF_LIFE, at_limit=False)
    assert turns.in_order("ba", 2 * HALF_LIFE) == ["a", "b"]


def test_equal_callers_keep_their_order() -> None:
    assert Turns().in_order("cab", 5.0) == ["c", "a", "b"]


def test_a_long_work_is_remembered_for_a_while() -> None:
    turns = Turns()
    for caller in ("a", ""):
        turns.took(caller, 3.0, 0.0, at_limit=False)
    turns.took("b", 1.0, 0.0, at_limit=False)
    assert [turns.is_long(caller, MEMORY - 1.0) for caller in ("a", "b", "")] == [True, False, False]
    assert not turns.is_long("a", MEMORY)


def test_works_at_their_limits_refuse_only_where_they_come_together() -> None:
    turns = Turns()
    for now in (0.0, 40.0, 80.0):
        turns.took("a", 1.0, now, at_limit=True)
    assert turns.refused_for("a", 80.0) == 0.0
    turns.took("a", 1.0, 90.0, at_limit=True)
    assert turns.refused_for("a", 100.0) == MEMORY - 10.0
    assert turns.refused_for("b", 100.0) == 0.0


def test_callers_are_forgotten() -> None:
    turns = Turns()
    turns.took("a", 10.0, 0.0, at_limit=True)
    turns.took("b", 0.001, 20 * HALF_LIFE, at_limit=False)
    assert list(turns._accounts) == ["b"]
