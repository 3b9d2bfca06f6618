"""What a request that comes now is promised, against a scheduler whose steps take what the model says."""

import random
from dataclasses import replace
from statistics import median, quantiles

import pytest

from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.pace import StepPace
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import VirtualServer, Watched

ROWS = 64
SMALL = StepTimeModel(256, LinearCost(base=0.0011, per_token=26e-6, per_position=38e-9))
MIDDLE = StepTimeModel(256, LinearCost(base=0.0059, per_token=400e-6, per_position=190e-9))
LARGE = StepTimeModel(256, LinearCost(base=0.075, per_token=0.004, per_position=1e-6))
"""Of 3 million, 88 million and a billion parameters on two cores."""


def pace(server: VirtualServer) -> StepPace:
    scheduler = server.scheduler
    return StepPace(server.step_time, 1.0, scheduler.num_running, ROWS, scheduler.waiting_tokens)


def serve(step_time: StepTimeModel, clients: int, seconds: float) -> tuple[float, list[float]]:
    """P99 of the times between tokens, and of prompts of 1,000 tokens beside these clients the time to the first token:
    each over what was promised."""
    server, rng = VirtualServer(step_time, rows=ROWS, num_blocks=8192), random.Random(0)

    def add() -> Watched:
        return server.add(max(1, round(rng.gauss(256, 77))), max(2, round(rng.gauss(60, 18))))

    live = [add() for _ in range(clients)]
    firsts, longest = [], []
    probe, due = None, seconds / 4
    while server.now < seconds:
        server.step()
        live = [one if len(one.tokens) < one.sequence.request.params.max_tokens else add() for one in live]
        if probe is None and server.now > due:
            longest.append(pace(server).longest_step)
            promised, probe = pace(server).first_token, server.add(1000, 2)
        elif probe is not None and probe.tokens:
            firsts.append(probe.first_token / promised)
            probe, due = None, server.now + seconds / 40
    gaps = [b - a for one in server.watched.values() for a, b in zip(one.tokens, one.tokens[1:], strict=False)]
    return quantiles(gaps, n=100)[98] / median(longest), firsts


@pytest.mark.parametrize(
    ("step_time", "clients", "seconds"),
    [(SMALL, 4, 2.0), (SMALL, 16, 2.0), (MIDDLE, 4, 20.0), (MIDDLE, 64, 40.0), (LARGE, 16, 300.0)],
)
def test_what_is_promised_comes(step_time: StepTimeModel, clients: int, seconds: float) -> None:
    """Shorter prompts that come later go first, so of 1,000 tokens the first may come later, within limits."""
    gap, firsts = serve(step_time, clients, seconds)
    assert 0.2 < gap < 1.2
    assert 0.8 < median(firsts) < 1.6


def test_nobody_is_before_a_prompt_that_comes_to_an_idle_server() -> None:
    server = VirtualServer(MIDDLE, rows=ROWS)
    alone = pace(server)
    assert alone.first_token == pytest.approx(1000 * 400e-6 + 3.9 * 0.0059 + 0.5e6 * 190e-9, rel=0.05)
    server.add(1000, 2)
    assert pace(server).first_token == pytest.approx(2 * alone.first_token, rel=0.15)
    server.add(1000, 2, background=True)
    assert pace(server).first_token == pytest.approx(2 * alone.first_token, rel=0.15)
    server.step()  # the first has begun, and is no longer among those that wait
    assert pace(server).first_token < 1.3 * alone.first_token


def test_the_more_run_the_longer_are_the_steps_of_a_large_model() -> None:
    alone = StepPace(LARGE, 1.5, 0, ROWS, 0)
    assert alone.longest_step == pytest.approx(1.5 * 0.225)
    assert alone.longest_full_step == pytest.approx(1.5 * 2 * (0.075 + ROWS * 0.004))
    assert replace(alone, running=ROWS).longest_step == alone.longest_full_step
    assert StepPace(MIDDLE, 1.0, 0, ROWS, 0).longest_step == StepPace(MIDDLE, 1.0, 0, ROWS, 0).longest_full_step
