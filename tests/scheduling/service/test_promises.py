"""Promises kept and broken under load, on a clock that follows the step time model."""

from typing import Any

import pytest

from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S, ServiceClass
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.prefill_limits import target
from jaxgen.scheduling.service import policy
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import VirtualServer, Watched, promised

PACE = StepTimeModel(128, LinearCost(base=0.010, per_token=0.0005, per_position=1e-7, per_context=1e-7))
"""A full step takes 74 ms: 1,730 tokens a second."""
TALK = ServiceClass(name="talk", first_token_seconds=0.5, inter_token_seconds=0.040)
NOTHING = ServiceClass()


def flooded(service: ServiceClass, *, prompts: int = 40, rows: int = 16) -> list[Watched]:
    """Short requests of a class, one each half second, beside more long prompts than can be served."""
    server = VirtualServer(PACE, rows=rows)
    for _ in range(prompts):
        server.add(2000, 20)
    watched = []
    for index in range(20):
        server.run_until(1.0 + index / 2)
        watched.append(server.add(60, 20, service=service))
    server.run_until(100.0)
    return watched


@pytest.mark.parametrize("rows", [4, 16])
def test_under_a_flood_of_long_prompts_promises_are_kept(rows: int) -> None:
    """With few rows, too, of which long prompts hold all when the first one comes."""
    watched = flooded(TALK, rows=rows)
    assert max(one.first_token for one in watched) <= 0.5
    assert max(one.longest_gap for one in watched) <= 0.040


def test_without_a_promise_short_prompts_come_first_until_the_flood_is_due() -> None:
    """Long prompts get 2000 / 512 s more than short ones: no later one comes before them."""
    watched = flooded(NOTHING)
    early, late = watched[:5], watched[6:]
    assert [one.arrived + target(60) < target(2000) for one in (early[-1], late[0])] == [True, False]
    assert max(one.first_token for one in early) < 0.3
    assert min(one.first_token for one in late) > 1.0


def test_a_first_token_in_time_leaves_steps_as_long_as_they_are() -> None:
    watched = flooded(promised("soon", 0.5))
    assert max(one.first_token for one in watched) <= 0.5
    assert max(one.longest_gap for one in watched) > 0.060


def test_patience_brings_each_of_those_without_a_promise_on_and_breaks_no_more_than_it_must() -> None:
    """More promised work than can be served: of the others one begins in a minute, and one in three minutes, but not
    all at once."""
    server = VirtualServer(PACE, rows=4)
    strict = promised("strict", 3.0)
    others = [server.add(500, 2) for _ in range(12)]
    while server.now < 3.5 * STARVATION_TIMEOUT_S:
        while server.try_to_add(200, 2, service=strict):
            pass
        server.step()
    began = [one.tokens[0] for one in others if one.tokens]
    assert len(began) == 3
    for count, seconds in enumerate(began, start=1):
        assert count * STARVATION_TIMEOUT_S <= seconds <= count * STARVATION_TIMEOUT_S + 10.0


def test_a_backlog_whose_patience_ended_is_not_before_promises() -> None:
    server = VirtualServer(PACE)
    for _ in range(120):
        server.add(2000, 4)
    server.run_until(STARVATION_TIMEOUT_S + 5.0)
    watched = []
    for index in range(30):
        server.run_until(STARVATION_TIMEOUT_S + 5.0 + index / 2)
        watched.append(server.try_to_add(60, 10, service=promised("soon", 0.5)))
    server.run_until(STARVATION_TIMEOUT_S + 30.0)
    kept = [one for one in watched if one is not None and one.first_token <= 0.5]
    assert len(kept) >= 25  # all but those that come while the prompt of one is computed


def test_promised_ones_all_get_through_although_urgent_ones_keep_coming() -> None:
    server = VirtualServer(PACE, rows=4)
    lax = server.add(800, 4, service=promised("lax", 20.0))
    while not lax.tokens and server.now < 60.0:
        server.try_to_add(200, 4, service=promised("strict", 0.5))
        server.step()
    assert lax.first_token <= 20.0


def test_nobody_is_displaced_again_and_again() -> None:
    """Those without promise that begin while none waits are displaced once by each that comes, and no more."""
    server = VirtualServer(PACE, rows=2, num_blocks=80)
    for _ in range(6):
        server.add(300, 30)
    for index in range(20):
        server.run_until(float(index))
        server.add(200, 10, service=promised("soon", 0.9, serve_late=True))
    server.run_until(200.0)
    assert not server.scheduler.has_work
    assert server.scheduler.preemptions <= 20 + 2


def test_a_target_that_cannot_be_kept_takes_nothing_from_others() -> None:
    server = VirtualServer(PACE)
    others = [server.add(100, 40) for _ in range(6)]
    server.run_until(1.0)
    server.add(50, 400, service=promised("vain", None, inter_token_seconds=0.002, serve_late=True))
    more = server.add(100, 4)
    server.run_until(3.0)
    assert server.scheduler.preemptions == 0
    assert all(one.tokens for one in (*others, more))


def test_a_long_prompt_far_on_is_computed_beside_promised_decodes() -> None:
    """A token after 4,000 others costs more than the time that is left, which would do for 20 of the first ones."""
    server = VirtualServer(
        StepTimeModel(64, LinearCost(base=0.010, per_token=0.0005, per_position=3e-6, per_context=3e-6)), longest=10_000
    )
    server.add(4, 9_000, service=promised("talk", None, inter_token_seconds=0.025))
    long = server.add(8_000, 1)
    for _ in range(600):
        server.step()
    assert long.tokens


def test_those_without_a_promise_run_as_far_as_promises_allow() -> None:
    """Steps of 6 decodes take 13 ms and a little, 90 % of what is promised; more wait."""
    server = VirtualServer(PACE)
    server.add(4, 1000, service=promised("steady", None, inter_token_seconds=0.0148))
    for _ in range(12):
        server.add(4, 1000)
    for _ in range(50):
        server.step()
    assert (server.scheduler.num_running, server.scheduler.num_waiting) == (6, 7)


def test_no_more_are_displaced_than_make_room() -> None:
    server = VirtualServer(PACE, rows=4)
    for _ in range(6):
        server.add(200, 1000)
    server.run_until(2.0)
    for _ in range(2):
        server.add(20, 4, service=promised())
    server.step()
    assert server.scheduler.preemptions == 2


@pytest.mark.parametrize("fields", [{}, {"inter_token_seconds": 0.050}])
def test_of_too_many_requests_those_accepted_are_in_time(fields: dict[str, Any]) -> None:
    """Twice as many as can be served: enough are taken to keep the server at work, and these are served in time."""
    server = VirtualServer(PACE, rows=8)
    service = promised("strict", 1.5, **fields)
    found = []
    for index in range(120):
        server.run_until(index * 0.08)
        found.append(server.try_to_add(250, 6, service=service))
    server.run_until(60.0)
    accepted = [one for one in found if one is not None]
    assert 30 <= len(accepted) <= 90
    assert max(one.first_token for one in accepted) <= 1.5
    if fields:
        assert max(one.longest_gap for one in accepted) <= 0.050


def test_of_two_tenants_the_one_that_floods_is_refused_before_it_is_late() -> None:
    """A promise to a tenant that is ahead of its share is made with the other's share in mind."""
    server = VirtualServer(PACE, rows=8)
    for _ in range(60):
        server.add(600, 4, tenant="steady")
    found = []
    for index in range(100):
        server.run_until(index * 0.1)
        found.append(server.try_to_add(250, 4, tenant="flood", service=promised("strict", 2.0)))
    server.run_until(60.0)
    accepted = [one for one in found if one is not None]
    assert len(accepted) >= 15
    assert max(one.first_token for one in accepted) <= 2.0


def test_a_prompt_without_a_promise_gives_its_row_up_before_it_is_computed() -> None:
    server = VirtualServer(PACE, rows=1)
    long = server.add(2000, 4)
    server.step()
    one = server.add(20, 4, service=promised())
    server.step()
    assert one.tokens
    server.run_until(60.0)
    assert len(long.tokens) == 4


def test_a_backlog_that_is_late_already_does_not_stand_before_promises_that_can_be_kept() -> None:
    """Of a class that is served all the same: a minute's work, all of it due before what comes then."""
    server = VirtualServer(PACE)
    lax = [server.add(1000, 4, service=promised("lax", 10.0, serve_late=True)) for _ in range(100)]
    strict = []
    for index in range(20):
        server.run_until(9.0 + index)
        strict.append(server.add(100, 4, service=promised("strict", 0.5)))
    assert sum([bool(one.tokens) for one in lax]) > 30
    server.run_until(100.0)
    assert max(one.first_token for one in strict) <= 0.5
    # Those that could be in time were, and all were served.
    assert sum([one.first_token <= 10.0 for one in lax]) >= 15
    assert all(one.tokens for one in lax)


def test_promises_are_made_with_all_decodes_in_mind() -> None:
    """Half of each step goes to decodes to which nothing was promised."""
    server = VirtualServer(
        StepTimeModel(32, LinearCost(base=0.010, per_token=0.0005, per_position=1e-6, per_context=1e-6)), rows=20
    )
    for _ in range(16):
        server.add(4, 3000)
    server.run_until(3.0)
    found = []
    for index in range(60):
        server.run_until(3.0 + index / 4)
        found.append(server.try_to_add(300, 4, service=promised("strict", 0.7)))
    server.run_until(60.0)
    accepted = [one for one in found if one is not None]
    assert len(accepted) >= 15
    assert max(one.first_token for one in accepted) <= 0.7


def test_a_step_does_not_ask_all_that_wait_whether_they_break_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one must wait, those behind it must too; with several tenants there are two lines of them."""
    asked: list[int] = []

    def breaks(sequences: list[Sequence], step_time: StepTimeModel | None) -> bool:
        asked.append(len(sequences))
        return True

    monkeypatch.setattr(policy, "breaks_targets", breaks)
    server = VirtualServer(PACE)
    server.add(4, 1000, service=promised("steady", None, inter_token_seconds=0.0148))
    server.step()
    for index in range(200):
        server.add(400, 4, tenant="flood" if index % 2 else "other")
    assert isinstance(server.scheduler.policy, policy.ServicePolicy)
    server.scheduler.policy._fair_shares[False]._served["flood"] = 1e6
    asked.clear()
    server.step()
    assert 1 <= len(asked) <= 4


def test_whoever_is_late_is_served_before_those_that_come_later() -> None:
    """Of a class that is served all the same, with always more than can be in time."""
    server = VirtualServer(PACE)
    late = promised("late", 1.0, serve_late=True)
    clients = [server.add(500, 2, service=late) for _ in range(12)]
    waits = []
    while server.now < 60.0:
        server.step()
        for index, one in enumerate(clients):
            if len(one.tokens) == 2:
                waits.append(one.first_token)
                clients[index] = server.add(500, 2, service=late)
    assert len(waits) > 150
    assert max(waits) < 6.0
    assert all(server.now - one.arrived < 6.0 for one in clients)


def test_a_late_backlog_of_one_class_takes_no_promise_from_another_that_is_served_late() -> None:
    server = VirtualServer(PACE)
    for _ in range(100):
        server.add(1000, 4, service=promised("lax", 10.0, serve_late=True))
    strict = []
    for index in range(20):
        server.run_until(9.0 + index)
        strict.append(server.add(100, 4, service=promised("strict", 0.5, serve_late=True)))
    server.run_until(60.0)
    assert max(one.first_token for one in strict) <= 0.5


def test_a_callers_accepted_requests_refuse_no_other_callers() -> None:
    """Whose share they are computed in."""
    server = VirtualServer(PACE)
    for _ in range(40):
        server.try_to_add(400, 4, tenant="flood", service=promised("lax", 8.0))
    refused = 0
    for index in range(12):
        server.run_until(index / 2)
        while server.try_to_add(400, 4, tenant="flood", service=promised("lax", 8.0)):
            pass
        refused += server.try_to_add(100, 4, tenant="other", service=promised("strict", 0.5)) is None
    assert refused == 0
