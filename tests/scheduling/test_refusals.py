"""What a scheduler refuses: requests that never fit, and plans completed out of order."""

import re

import pytest

from jaxgen.core.errors import RequestRefusedError
from tests.support.small_scheduler import TOKEN, add, new_scheduler, run_dry, sequence_of, shown


def test_too_long_for_the_model() -> None:
    with pytest.raises(RequestRefusedError, match=r"max_tokens \(5\) is 65 .*--max-model-len\) is 64"):
        add(new_scheduler(), "a", 60, max_tokens=5)
    add(new_scheduler(), "a", 60, max_tokens=4)


def test_too_long_for_the_cache() -> None:
    scheduler = new_scheduler(num_blocks=3, block_size=4)
    with pytest.raises(RequestRefusedError, match=r"takes 4 cache blocks of 4 tokens, .*--num-blocks\) has 3"):
        add(scheduler, "a", 10, max_tokens=4)
    add(scheduler, "a", 10, max_tokens=3)  # the last token is never computed
    run_dry(scheduler)


def test_an_id_in_use() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    with pytest.raises(ValueError, match="request_id 'a' is in use"):
        add(scheduler, "a", 3)
    run_dry(scheduler)
    add(scheduler, "a", 3)


def test_an_arrival_out_of_order() -> None:
    scheduler = new_scheduler()
    early = sequence_of("early", 3)
    late = add(scheduler, "late", 3)
    with pytest.raises(ValueError, match=f"arrival must be above {late.arrival}, not {early.arrival}"):
        scheduler.add(early)


def test_the_wrong_number_of_tokens() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    plan = scheduler.schedule()
    with pytest.raises(ValueError, match=re.escape("the plan samples 1 tokens, got 2")):
        scheduler.complete(plan, [1, 2])


def test_a_plan_completed_twice() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    plan = scheduler.schedule()
    scheduler.complete(plan, [TOKEN])
    with pytest.raises(RuntimeError, match="stale plan: plans are completed once, in the order planned"):
        scheduler.complete(plan, [TOKEN])


def test_a_plan_completed_before_the_one_before_it() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    first, second = scheduler.schedule(), scheduler.schedule()
    with pytest.raises(RuntimeError, match="stale plan"):
        scheduler.complete(second, [TOKEN])
    assert [len(scheduler.complete(plan, [TOKEN])) for plan in (first, second)] == [1, 1]


def test_a_plan_lost_with_the_device() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    plan = scheduler.schedule()
    scheduler.fail()
    with pytest.raises(RuntimeError, match="stale plan"):
        scheduler.complete(plan, [TOKEN])


def test_a_third_plan_while_two_are_in_flight() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    plan = scheduler.schedule()
    scheduler.schedule()
    with pytest.raises(RuntimeError, match="two plans are in flight"):
        scheduler.schedule()
    scheduler.complete(plan, [TOKEN])
    assert shown(scheduler.schedule()) == [("a", 4, 1)]
