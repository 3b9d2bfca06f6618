"""How likely drafts are said to be, and what a request pays whose drafts are all wrong."""

import pytest

from jaxgen.core.sequence import Sequence
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.drafts import Draft
from jaxgen.speculation.chances import PAUSES, UNKNOWN, Chances
from tests.scheduling.test_drafts import scheduler_with
from tests.speculation.test_lookup import sequence_of
from tests.support.small_scheduler import add


class Wrong:
    """Drafts that are found in every step, and never right."""

    def __init__(self) -> None:
        self.chances = Chances()
        self.told: list[int] = []

    def draft(self, sequence: Sequence, most: int) -> Draft:
        return self.chances.offer(sequence, len(sequence.tokens) % 3, (7,) * most)

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self.told.append(drafted)
        self.chances.checked(sequence, drafted, accepted)

    def ended(self, sequence: Sequence) -> None:
        """Nothing is kept of it."""


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1, 0.3])
def test_a_lone_request_whose_drafts_are_all_wrong_pays_two_percent_at_most(share: float) -> None:
    """``share``: the time of a draft, in steps without any."""
    wrong, steps = Wrong(), 0
    scheduler = scheduler_with(wrong, cost=LinearCost(1 - share, share), block_size=256)
    add(scheduler, "0", 4, max_tokens=150)
    while scheduler.has_work:
        plan = scheduler.schedule()
        scheduler.complete(plan, [9] * plan.num_samples)
        steps += 1
    assert steps == 150
    assert len(wrong.told) >= 3, "some are tried"
    assert share * sum(wrong.told) <= 0.02 * steps


def test_the_chance_follows_what_was_right() -> None:
    chances, sequence = Chances(), sequence_of(1)
    first = chances.offer(sequence, 2, (5, 6, 7))
    for _ in range(5):
        chances.checked(sequence, 3, 3)
    good = chances.chance(sequence, 2)
    for _ in range(20):
        chances.checked(sequence, 3, 0)
    assert first == ((5, 6, 7), UNKNOWN)
    assert chances.chance(sequence, 2) < 0.1 < 0.8 < good
    assert chances.chance(sequence_of(1), 2) < 0.1, "of a new request what others showed is known"
    assert chances.chance(sequence, 3) == UNKNOWN, "of other drafts nothing is known"


def test_one_is_tried_after_ever_longer_pauses_until_one_is_right() -> None:
    chances, sequence = Chances(), sequence_of(1)
    chances.offer(sequence, 2, (5, 6))
    for _ in range(30):
        chances.checked(sequence, 2, 0)

    def pause() -> int:
        count = 0
        while chances.offer(sequence, 2, (5, 6)).chance < UNKNOWN:
            count += 1
        return count

    found = []
    for _ in range(5):
        found.append(pause())
        chances.checked(sequence, 1, 0)
    assert found == [16, 32, 64, 128, 128]
    assert pause() == PAUSES[1]
    assert chances.offer(sequence, 2, (5, 6)).tokens == (5,), "until it is checked"
    chances.checked(sequence, 1, 1)
    assert chances.offer(sequence, 2, (5, 6)).tokens == (5, 6)
    assert chances.chance(sequence, 2) > 0.3
