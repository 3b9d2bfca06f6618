"""Shares of tenants in what is computed."""

from collections import abc
from typing import Any

import pytest

from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.service.fair_share import LEAD_STEPS, FairShare
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import VirtualServer, promised, sequence_for

BUDGET = 10
LEAD = LEAD_STEPS * BUDGET


def tenant(fair_share: FairShare, name: str, weight: float = 1.0, wanting: abc.Sequence[Sequence] = ()) -> Sequence:
    fair_share.join(name, weight, [other.request.tenant for other in wanting])
    return sequence_for(1000, tenant=name, tenant_weight=weight)


def charge(fair_share: FairShare, sequence: Sequence, tokens: int) -> None:
    fair_share.charge([Chunk(sequence, 0, tokens)])


def over(fair_share: FairShare, *wanting: Sequence) -> frozenset[str]:
    return fair_share.over({sequence.request.tenant for sequence in wanting})


def test_who_is_ahead_by_more_than_the_lead_lets_others_go_first() -> None:
    fair_share = FairShare(BUDGET)
    a, b = tenant(fair_share, "a"), tenant(fair_share, "b", weight=2.0)
    charge(fair_share, a, LEAD)
    assert over(fair_share, a, b) == frozenset()
    charge(fair_share, a, 1)
    assert over(fair_share, a, b) == {"a"}
    assert over(fair_share, a) == frozenset()  # nobody else wants anything
    charge(fair_share, b, 2)  # a token by its weight
    assert over(fair_share, a, b) == frozenset()


def test_who_comes_back_has_no_credit() -> None:
    fair_share = FairShare(BUDGET)
    a, b, c = tenant(fair_share, "a"), tenant(fair_share, "b"), tenant(fair_share, "c")
    fair_share.leave(b.request.tenant)
    charge(fair_share, a, 500)
    charge(fair_share, c, 500)
    b = tenant(fair_share, "b")
    assert over(fair_share, a, b, c) == frozenset()
    charge(fair_share, a, LEAD + 1)
    assert over(fair_share, a, b, c) == {"a"}


@pytest.mark.parametrize("others_want", [True, False])
def test_who_only_decodes_saves_nothing_up(others_want: bool) -> None:
    """Decodes all get, so a tenant with one stream after another uses no share, and nobody is to wait for it later."""
    fair_share = FairShare(BUDGET)
    a, b, _ = tenant(fair_share, "a"), tenant(fair_share, "b"), tenant(fair_share, "c")
    charge(fair_share, a, 500)
    charge(fair_share, b, 2)
    more = tenant(fair_share, "b", wanting=[a] if others_want else [])
    assert over(fair_share, a, more) == frozenset()


def test_what_is_saved_up_while_it_waits_is_kept() -> None:
    fair_share = FairShare(BUDGET)
    a, b = tenant(fair_share, "a"), tenant(fair_share, "b")
    charge(fair_share, a, 500)
    more = tenant(fair_share, "b", wanting=[a, b])
    assert over(fair_share, a, b, more) == {"a"}


def test_who_is_ahead_cannot_leave_it_behind_by_going() -> None:
    fair_share = FairShare(BUDGET)
    a, b = tenant(fair_share, "a"), tenant(fair_share, "b")
    charge(fair_share, a, 500)
    fair_share.leave(a.request.tenant)
    a = tenant(fair_share, "a")
    assert over(fair_share, a, b) == {"a"}


def test_what_was_computed_for_one_alone_is_not_held_against_it() -> None:
    fair_share = FairShare(BUDGET)
    a = tenant(fair_share, "a")
    charge(fair_share, a, 500)
    b = tenant(fair_share, "b")
    assert over(fair_share, a, b) == frozenset()


def test_a_tenant_that_is_not_ahead_of_anyone_is_forgotten() -> None:
    fair_share = FairShare(BUDGET)
    stays = tenant(fair_share, "stays")
    for index in range(100):
        gone = tenant(fair_share, f"t{index}")
        charge(fair_share, stays, 5)
        charge(fair_share, gone, 5)
        fair_share.leave(gone.request.tenant)
    assert len(fair_share._served) < 3


PACE = StepTimeModel(64, LinearCost(0.010, 0.0005))


@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 2.0, "c": 4.0}])
def test_tenants_with_more_than_can_be_served_get_tokens_by_weight(weights: dict[str, float]) -> None:
    """Each prompt of the heaviest comes last, so that the order of coming alone would give it nothing."""
    server = VirtualServer(PACE)
    for name, weight in weights.items():
        for _ in range(60):
            server.add(300, 8, tenant=name, tenant_weight=weight)
    for _ in range(150):
        server.step()
    shares = [server.computed[name] / weight for name, weight in weights.items()]
    # Beside the lead, what may have been computed for those that ran when a tenant came to be ahead.
    assert max(shares) - min(shares) <= LEAD_STEPS * PACE.token_budget + 2 * PACE.token_budget


@pytest.mark.parametrize("fields", [{}, {"service": promised("late", 0.01, serve_late=True)}, {"priority": -9}])
def test_a_flood_does_not_delay_another_tenant(fields: dict[str, Any]) -> None:
    """Not even one of promised or urgent requests."""
    server = VirtualServer(PACE)
    for _ in range(60):
        server.add(600, 4, tenant="flood", **fields)
    one = server.add(100, 4, tenant="other")
    server.run_until(1.0)
    step = PACE.wide.seconds(64)
    assert one.first_token <= (LEAD_STEPS + 4) * step


def test_what_the_background_got_is_not_held_against_others_of_the_tenant() -> None:
    server = VirtualServer(PACE)
    server.add(4, 3000, tenant="other")
    server.add(2000, 4, tenant="batches", background=True)
    server.run_until(2.0)
    assert server.computed["batches"] > 1000
    for _ in range(30):
        server.add(600, 4, tenant="other")
    one = server.add(100, 4, tenant="batches")
    server.run_until(10.0)
    assert one.first_token <= (LEAD_STEPS + 4) * PACE.wide.seconds(64)
