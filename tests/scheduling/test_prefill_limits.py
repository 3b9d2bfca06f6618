"""How full steps are beside decodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.prefill_limits import DEFAULT_LIMITS, GPU_LIMITS, DuePrompt, target
from jaxgen.scheduling.step_time import LEAST_CHUNK, MARGIN, StepTimeModel
from tests.support.service_world import VirtualServer

FAST = StepTimeModel(256, LinearCost(base=0.0075, per_token=0.00047))
"""A step of one token takes 8 ms, a full one 128 ms."""
SLOW = StepTimeModel(256, LinearCost(base=0.1, per_token=0.005))
"""A full step takes 1.4 s."""
FLAT = StepTimeModel(256, LinearCost(base=0.02))
"""A step costs the same however full it is."""


def waiting(prompt: int, left: float) -> DuePrompt:
    return DuePrompt(prompt, prompt, left)


def test_where_nothing_decodes_steps_are_short_or_of_a_chunk_that_pays() -> None:
    assert DEFAULT_LIMITS.seconds_for_prompts(FAST, 0, 0, [waiting(100, 1.0)]) == pytest.approx(
        MARGIN * DEFAULT_LIMITS.gap
    )
    assert DEFAULT_LIMITS.seconds_for_prompts(SLOW, 0, 0, []) == pytest.approx(256 * SLOW.wide.per_token)


@pytest.mark.parametrize(("per_token", "tokens"), [(0.0001, 512), (0.0005, 450), (0.005, 256)])
def test_how_full_steps_are_where_nothing_decodes(per_token: float, tokens: int) -> None:
    server = VirtualServer(StepTimeModel(512, LinearCost(base=0.0, per_token=per_token)))
    prompt = server.add(2000, 2)
    server.step()
    assert prompt.sequence.num_computed == tokens


def test_a_prompt_in_time_stretches_a_step_so_far_and_no_further() -> None:
    alone = FAST.wide.seconds(4)
    assert DEFAULT_LIMITS.seconds_for_prompts(FAST, 4, 0, [waiting(100, 10.0)]) == pytest.approx(
        (DEFAULT_LIMITS.stretch - 1) * alone
    )
    longer = DEFAULT_LIMITS.seconds_for_prompts(FAST, 4, 500_000, [waiting(100, 10.0)])
    assert longer == pytest.approx((DEFAULT_LIMITS.stretch - 1) * alone)  # attention costs nothing here


def test_a_prompt_that_would_be_late_gets_what_brings_it_in_time() -> None:
    alone = FAST.wide.seconds(4)
    takes = 256 * FAST.wide.per_token
    left = takes / 0.85 / MARGIN  # so 85 % of the time must be its own
    granted = left + target(256) / 2
    assert DEFAULT_LIMITS.seconds_for_prompts(FAST, 4, 0, [waiting(256, granted)]) == pytest.approx(alone * 0.85 / 0.15)
    behind = [waiting(128, 10.0), waiting(128, left + target(128) / 2)]
    assert DEFAULT_LIMITS.seconds_for_prompts(FAST, 4, 0, behind) == pytest.approx(alone * 0.85 / 0.15)


@pytest.mark.parametrize("left", [0.0, -1.0, 0.01])
def test_a_late_prompt_gets_all_there_is(left: float) -> None:
    assert DEFAULT_LIMITS.seconds_for_prompts(FAST, 4, 0, [waiting(256, left)]) >= 252 * FAST.wide.per_token
    assert DEFAULT_LIMITS.longest(FAST, 4) == FAST.wide.seconds(256)


def test_steps_end_in_time_for_four_tokens_a_second() -> None:
    alone = SLOW.wide.seconds(1)
    assert alone + DEFAULT_LIMITS.seconds_for_prompts(SLOW, 1, 0, [waiting(256, -1.0)]) == pytest.approx(
        MARGIN * DEFAULT_LIMITS.gap
    )
    assert DEFAULT_LIMITS.longest(SLOW, 1) == pytest.approx(MARGIN * DEFAULT_LIMITS.gap)


def test_on_a_gpu_gaps_are_short_unless_a_prompt_would_be_late() -> None:
    """At the times of an H200: steps of 5 ms at least, and of 23 ms if they are full."""
    gpu, rows = StepTimeModel(1024, LinearCost(base=0.001, per_token=0.0000214, floor=0.005)), 64
    alone = gpu.wide.seconds(rows)
    usual, late = (alone + GPU_LIMITS.seconds_for_prompts(gpu, rows, 0, [waiting(512, left)]) for left in (5.0, -1.0))
    assert usual == pytest.approx(MARGIN * GPU_LIMITS.gap)
    assert late == pytest.approx(MARGIN * GPU_LIMITS.late_gap)
    assert GPU_LIMITS.spare(gpu, rows, 0, usual - alone) == 0.0
    (gap,) = GPU_LIMITS.usual_decodes(gpu, rows).targets
    assert gap == pytest.approx(GPU_LIMITS.gap)


def test_prompts_get_half_of_the_time_where_decodes_alone_take_too_long() -> None:
    alone = SLOW.wide.seconds(100)
    assert alone > DEFAULT_LIMITS.gap
    assert DEFAULT_LIMITS.seconds_for_prompts(SLOW, 100, 0, [waiting(256, 1.0)]) == pytest.approx(alone)


def test_where_steps_cost_the_same_no_token_is_left_out() -> None:
    server = VirtualServer(FLAT)
    server.add(4, 200)
    for _ in range(5):
        server.step()
    long = server.add(1000, 2)
    while not long.tokens:
        server.step()
    assert long.first_token == pytest.approx(4 * 0.02, abs=0.041)  # 255 tokens a step, after the one under way


@given(
    st.integers(1, 64), st.integers(0, 10**6), st.lists(st.tuples(st.integers(1, 500), st.floats(-1, 9)), max_size=9)
)
def test_prompts_always_get_something_and_steps_keep_their_bound(
    rows: int, contexts: int, prompts: list[tuple[int, float]]
) -> None:
    step_time = StepTimeModel(256, LinearCost(base=0.01, per_token=0.0005, per_position=1e-7, per_context=5e-7))
    seconds = DEFAULT_LIMITS.seconds_for_prompts(step_time, rows, contexts, [waiting(*one) for one in prompts])
    least = LEAST_CHUNK * step_time.wide.per_token
    assert least <= seconds
    alone = step_time.wide.seconds(rows, contexts=contexts)
    assert alone + seconds <= max(MARGIN * DEFAULT_LIMITS.gap, 2 * alone, alone + least) + 1e-9


def test_what_is_predicted_is_what_comes() -> None:
    """The figure of /metrics for 1,000 tokens beside decodes, against a scheduler that follows the rule."""
    server = VirtualServer(FAST)
    for _ in range(8):
        server.add(4, 4000)
    for _ in range(20):
        server.step()
    predicted = FAST.prompt_seconds(1000, 0, DEFAULT_LIMITS.usual_decodes(FAST, 8))
    assert predicted < target(1000) / 2  # no prompt must be early
    comes = server.add(1000, 2)
    while not comes.tokens:
        server.step()
    assert comes.first_token == pytest.approx(predicted, rel=0.15)


def test_shorter_prompts_come_first_by_what_is_due_first() -> None:
    server = VirtualServer(FAST)
    long, short = server.add(2000, 2), server.add(100, 2)
    while not long.tokens:
        server.step()
    assert short.tokens[0] < long.tokens[0] / 3


def test_a_step_takes_longer_where_that_ends_a_prompt_but_not_beyond_its_bound() -> None:
    alone = FAST.wide.seconds(4)
    assert DEFAULT_LIMITS.spare(FAST, 4, 0, 5 * alone) == pytest.approx(alone)
    bound = MARGIN * DEFAULT_LIMITS.gap
    assert DEFAULT_LIMITS.spare(FAST, 4, 0, bound - 1.5 * alone) == pytest.approx(0.5 * alone)
    assert DEFAULT_LIMITS.spare(FAST, 4, 0, bound) == 0.0
    assert DEFAULT_LIMITS.spare(SLOW, 0, 0, 1.0) == SLOW.wide.seconds(0)


@pytest.mark.parametrize(("prompt", "chunks"), [(100, [100]), (111, [111]), (130, [94, 36])])
def test_the_last_tokens_of_a_prompt_do_not_take_a_step_of_their_own(prompt: int, chunks: list[int]) -> None:
    """Beside three decodes prompts get 94 tokens of a step, and the time of 19 more where that ends one."""
    server = VirtualServer(FAST)
    for _ in range(3):
        server.add(2, 200)
    server.step()
    sequence, found = server.add(prompt, 4).sequence, []
    while sequence.num_computed < prompt:
        before = sequence.num_computed
        server.step()
        found.append(sequence.num_computed - before)
    assert found == chunks
