"""Sequences of no caller, and steps that are timed alone."""

from jaxgen.core.sampling_params import SamplingParams
from jaxgen.runner.timing import made_up_sequence

PARAMS = SamplingParams(max_tokens=2)


def test_a_scheduler_gives_row_and_blocks_unless_they_are_given() -> None:
    scheduled = made_up_sequence(3, (5, 6), PARAMS)
    assert (scheduled.row, scheduled.block_table, scheduled.arrival) == (None, [], 3)
    by_hand = made_up_sequence(3, (5, 6), PARAMS, blocks=range(7, 9))
    assert (by_hand.row, by_hand.block_table, by_hand.arrival) == (3, [7, 8], 3)
    assert by_hand.tokens == [5, 6]
    assert by_hand.request_id == scheduled.request_id != made_up_sequence(4, (5, 6), PARAMS).request_id
