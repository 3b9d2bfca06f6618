"""No tenant holds every row while another has none."""

import pytest

from jaxgen.core.standing import Level
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import VirtualServer, promised, sequence_for
from tests.support.small_scheduler import TOKEN

STEP_TIME = StepTimeModel(32, LinearCost(0.001, 0.0001, 0.0))
ROWS = 8


def server(**fields: int) -> VirtualServer:
    return VirtualServer(STEP_TIME, rows=ROWS, **fields)


def test_who_has_no_row_takes_one_of_who_has_several() -> None:
    world = server()
    held = [world.add(4, 500, tenant="b") for _ in range(3 * ROWS)]
    for _ in range(20):
        world.step()
    first = world.add(4, 8, tenant="a")
    for _ in range(9):
        world.step()
    assert len(first.tokens) == 8
    assert world.scheduler.preemptions == 1
    last = [one.sequence for one in held if one.sequence.standing.num_preemptions]
    assert [s.arrival for s in last] == [held[ROWS - 1].sequence.arrival], (
        "the last that ran, and it waits at its place"
    )
    world.step()
    assert last[0].row is not None, "it is the first to get the row back"


def test_further_rows_come_as_others_end() -> None:
    world = server()
    for _ in range(2 * ROWS):
        world.add(4, 500, tenant="b")
    world.step()
    mine = [world.add(4, 8, tenant="a") for _ in range(5)]
    world.run_until(world.now + 0.5)
    assert all(len(one.tokens) == 8 for one in mine)
    assert world.scheduler.preemptions <= len(mine)


@pytest.mark.parametrize("tenants", ["a", "abcdefgh"])
def test_who_has_one_row_keeps_it(tenants: str) -> None:
    """Also where one tenant is alone, or has none but its own to take from."""
    world = server()
    for number in range(2 * ROWS):
        world.add(4, 50, tenant=tenants[number % len(tenants)])
    world.step()
    late = world.add(4, 8, tenant="a" if len(tenants) == 1 else "z")
    world.run_until(100.0)
    assert len(late.tokens) == 8
    assert world.scheduler.preemptions == 0


def test_the_tenant_with_the_most_rows_by_weight_gives_one() -> None:
    world = server()
    for _ in range(5):
        world.add(4, 500, tenant="heavy", tenant_weight=5.0)
    for _ in range(3):
        world.add(4, 500, tenant="light")
    world.step()
    world.add(4, 8, tenant="a")
    world.step()
    gone = [one.sequence.request.tenant for one in world.watched.values() if one.sequence.standing.num_preemptions]
    assert gone == ["light"]


def test_several_without_a_row_get_one_each() -> None:
    world = server()
    for _ in range(2 * ROWS):
        world.add(4, 500, tenant="b")
    world.step()
    late = [world.add(4, 8, tenant=tenant) for tenant in "cdefghijk"]  # one more than may have a row beside b
    world.run_until(world.now + 0.5)
    assert all(len(one.tokens) == 8 for one in late)


def test_blocks_are_given_too_while_the_other_keeps_as_many() -> None:
    world = server(num_blocks=24)
    held = [world.add(40, 300, tenant="b") for _ in range(4)]  # 3 blocks each, and growing
    for _ in range(80):
        world.step()
    assert world.scheduler.pool.num_free < 4
    before = world.scheduler.preemptions
    small = world.add(30, 8, tenant="a")
    for _ in range(12):
        world.step()
    assert len(small.tokens) == 8
    assert world.scheduler.preemptions > before
    assert held[0].sequence.standing.num_preemptions == 0
    large = world.add(16 * 20, 8, tenant="c")  # more than the other would keep
    world.step()
    assert large.sequence.row is None
    world.run_until(1e6)
    assert all(one.tokens for one in world.watched.values())


def test_a_decode_without_a_block_takes_it_of_who_has_several() -> None:
    world = server(num_blocks=16)
    first = [world.add(40, 100, tenant="b") for _ in range(3)]
    alone = world.add(60, 50, tenant="a")
    for _ in range(7):
        world.step()
    assert world.scheduler.policy.queues.running[-1] is alone.sequence, "the last in the order of service"
    world.run_until(1e6)
    assert alone.sequence.standing.num_preemptions == 0
    assert sum(one.sequence.standing.num_preemptions for one in first) > 0


def test_one_that_gives_its_block_to_a_later_decode_is_not_in_the_plan() -> None:
    world = server(num_blocks=6)
    first, second = (world.add(8, 60, tenant="b").sequence for _ in range(2))
    alone = world.add(16, 40, tenant="a").sequence  # of three that decode, the last, and the first that lacks a block
    plan = world.scheduler.schedule(world.now)
    while not plan.preempted:
        world.scheduler.complete(plan, [TOKEN] * plan.num_samples)
        plan = world.scheduler.schedule(world.now)
    assert list(plan.preempted) == [second]
    assert [(chunk.sequence, chunk.length) for chunk in plan.chunks] == [(first, 1), (alone, 1)]
    assert (second.row, second.num_computed, second.num_pending) == (None, 0, 0)


def test_a_promise_is_not_broken_for_who_has_none() -> None:
    world = server()
    for _ in range(ROWS):
        world.add(4, 500, tenant="b", service=promised())
    world.step()
    plain = world.add(4, 8, tenant="a")
    for _ in range(20):
        world.step()
    assert (plain.tokens, world.scheduler.preemptions) == ([], 0)
    same = world.add(4, 8, tenant="c", service=promised())
    for _ in range(9):
        world.step()
    assert (len(same.tokens), world.scheduler.preemptions) == (8, 1)
    assert same.sequence.standing.level is Level.WITH_TARGETS


def test_a_quote_knows_of_the_row() -> None:
    world = server()
    for _ in range(20 * ROWS):
        world.add(4, 500, tenant="b")
    world.step()
    quoted = {
        tenant: world.scheduler.quote(sequence_for(4, 8, tenant=tenant), world.now).first_token for tenant in "ab"
    }
    assert quoted["a"] < 0.1 < quoted["b"]
    first = world.add(4, 8, tenant="a")
    for _ in range(3):
        world.step()
    assert first.first_token == pytest.approx(quoted["a"], abs=0.01)


def test_batches_of_several_callers_share_rows_too() -> None:
    """And an online caller's row is not taken for them, however many it has."""
    world = server()
    online = [world.add(4, 500, tenant="c") for _ in range(2)]
    held = [world.add(4, 500, tenant="a", background=True) for _ in range(3 * ROWS)]
    for _ in range(20):
        world.step()
    other = world.add(4, 8, tenant="b", background=True)
    for _ in range(9):
        world.step()
    assert len(other.tokens) == 8
    assert world.scheduler.preemptions == 1
    gone = [one for one in held if one.sequence.standing.num_preemptions]
    assert [one.sequence.arrival for one in gone] == [held[ROWS - 2 - 1].sequence.arrival]
    assert all(len(one.tokens) > 20 and one.sequence.standing.num_preemptions == 0 for one in online)
