"""Grammars whose tokens take the host long: their requests wait, the others do not, and no answer changes."""

from collections.abc import Sequence as Tokens
from types import SimpleNamespace
from typing import Any

import pytest

from jaxgen.core.request import FinishReason
from jaxgen.core.step_plan import Outcome
from jaxgen.engine import constraints as module
from jaxgen.engine.constraints import CHEAP, MOST_SAVED, SHARE, ConstraintFollower
from jaxgen.text.constraint import Constraint
from jaxgen.text.grammar_state import Cost
from tests.engine.test_grammars import constrained, constraints

SLOW = 0.01


class Bench:
    """A follower whose clock passes by what each constraint is said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.followed: list[str] = []
        self.sequences: dict[str, Any] = {}
        scheduler: Any = SimpleNamespace(lives=lambda sequence: sequence in self.sequences.values(), force=None)
        self.follower = ConstraintFollower(scheduler, most_forced=0, clock=lambda: self.now)
        monkeypatch.setattr(module, "follow", self._follow)

    def sequence(self, tenant: str, name: str, seconds: float) -> Any:
        params = constrained(name, "[a-z]+", 0).params
        constraint = constraints().start(params).result()
        assert constraint.grammar is not None
        constraint.grammar.cost = Cost(seconds)
        request = SimpleNamespace(tenant=tenant)
        self.sequences[name] = SimpleNamespace(request_id=name, request=request, constraint=constraint, params=params)
        return self.sequences[name]

    def follow(self, *names: str, idle: bool = False) -> list[str]:
        """Return who was advanced; ``names`` have a new token each."""
        self.followed = []
        self.ends = self.follower.follow([Outcome(self.sequences[name], 0, 5, None) for name in names], idle=idle)[1]
        return self.followed

    def _follow(self, taken: Tokens[tuple[Constraint, int]]) -> None:
        for constraint, _ in taken:
            self.now += constraint.seconds
            self.followed += [name for name, one in self.sequences.items() if one.constraint is constraint]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_costly_ones_take_a_share_of_the_time_and_cheap_ones_wait_for_none(bench: Bench) -> None:
    costly = [f"b{i}" for i in range(16)]
    for name in costly:
        bench.sequence("b", name, SLOW)
    bench.sequence("a", "a", CHEAP)
    first = bench.follow(*costly, "a")
    assert first == ["a", "b0", "b1"]  # what had been saved up, and no more than one beyond
    assert 2 * SLOW >= MOST_SAVED > SLOW
    assert [bench.sequences[name].constraint.behind for name in ("a", "b1", "b2")] == [False, False, True]
    began, count = bench.now, 0
    for _ in range(200):
        bench.now += 0.005  # a step
        count += len(bench.follow("a")) - 1
    assert count == 14
    assert bench.now - began < 14 * SLOW + 200 * (0.005 + CHEAP) + 1e-9
    assert not any(one.constraint.behind for one in bench.sequences.values())


def test_their_share_holds_while_they_wait(bench: Bench) -> None:
    names = [f"b{i}" for i in range(200)]
    for name in names:
        bench.sequence("b", name, SLOW)
    bench.follow(*names)
    taken = began = bench.now
    for _ in range(200):
        bench.now += 0.005
        taken += SLOW * len(bench.follow())
    assert (taken - began) / (bench.now - began) == pytest.approx(SHARE, abs=0.02)


def test_of_several_callers_the_one_whose_grammars_took_least_is_first(bench: Bench) -> None:
    for name in ("b0", "b1", "b2", "c0", "c1"):
        bench.sequence(name[0], name, 3 * SLOW)
    assert bench.follow("b0", "b1", "b2", "c0", "c1") == ["b0"]
    order = []
    for _ in range(4):
        order += bench.follow(idle=True)
    assert order == ["c0", "b1", "c1", "b2"]


def test_where_nothing_runs_one_is_advanced_whatever_it_took_before(bench: Bench) -> None:
    for name in ("b0", "b1", "b2"):
        bench.sequence("b", name, 10.0)
    assert [bench.follow("b0", "b1", "b2"), bench.follow(), bench.follow(idle=True)] == [["b0"], [], ["b1"]]


def test_those_in_equal_states_are_advanced_together(bench: Bench) -> None:
    for name in ("b0", "b1", "b2"):
        bench.sequence("b", name, 10.0)
    cost = bench.sequences["b0"].constraint.grammar.cost
    bench.sequences["b2"].constraint.grammar.cost = cost
    assert bench.follow("b0", "b1", "b2") == ["b0", "b2"]


def test_one_that_has_ended_is_forgotten(bench: Bench) -> None:
    for name in ("b0", "b1"):
        bench.sequence("b", name, 10.0)
    bench.follow("b0", "b1")
    del bench.sequences["b1"]
    assert bench.follow(idle=True) == []


def test_one_that_cannot_be_advanced_is_ended_if_it_lives_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise KeyError

    bench.sequence("b", "b", SLOW)
    monkeypatch.setattr(module, "follow", fails)
    with pytest.raises(KeyError):
        bench.follow("b")
    monkeypatch.setattr(module, "follow", bench._follow)
    assert bench.follow() == []
    (end,) = bench.ends
    assert (end.request_id, end.finish_reason) == ("b", FinishReason.ERROR)
