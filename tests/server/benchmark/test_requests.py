"""What a load draws: lengths, prompts, arrivals."""

import numpy as np
import pytest

from jaxgen.server.benchmark.requests import IdPrompts, Lengths, Planner, poisson_arrivals, stagger


def test_lengths_are_normal_and_clipped() -> None:
    lengths = Lengths(prompt_mean=1000, prompt_max=1300, output_mean=1, output_max=9)
    drawn = np.array(lengths.draw(1, 4000))
    assert drawn.min(0).tolist() == [drawn[:, 0].min(), 1]
    assert drawn[:, 0].max() == 1300
    low = drawn[:, 0][drawn[:, 0] < 1000]
    # The lower half is not clipped: for a normal variable its root mean square distance is the standard deviation.
    assert np.sqrt(np.mean((low - 1000.0) ** 2)) == pytest.approx(300, rel=0.05)
    assert len(low) == pytest.approx(2000, rel=0.05)
    assert lengths.draw(1, 10) == [tuple(pair) for pair in drawn[:10].tolist()]


def test_lengths_about_their_means() -> None:
    assert Lengths.about(7.3, 4) == Lengths(prompt_mean=7.3, prompt_max=15, output_mean=4, output_max=8)
    assert Lengths.about(2000, 16, std_share=0.0).draw(3, 2) == [(2000, 16)] * 2


def test_a_seed_draws_what_it_always_drew() -> None:
    """Figures of simulations and comparisons on pages are of these lengths, delays and arrivals."""
    lengths = Lengths.about(256, 60)
    assert lengths.draw(42, 3) == [(211, 42), (360, 43), (462, 51)]
    planned = Planner(lengths, IdPrompts(9, 0, 1), 0, {}, 42).requests(3)
    assert [(request.prompt_tokens, request.max_tokens) for request in planned] == lengths.draw(42, 3)
    assert stagger(42, 3) == pytest.approx([0.0065735, 0.0167032, 0.0257913], rel=1e-5)
    assert poisson_arrivals(42, 2.0, 3) == pytest.approx([2.2983692, 2.6368814, 4.0779958], rel=1e-6)


def test_prompts_of_ids_stay_in_the_vocabulary() -> None:
    ids = IdPrompts(6, shared_prefix=0, seed=1).make(3, 500)
    assert set(ids) == {4, 5}
    assert ids == IdPrompts(6, shared_prefix=0, seed=1).make(3, 500)
    assert ids != IdPrompts(6, shared_prefix=0, seed=2).make(3, 500)


def test_poisson_arrivals() -> None:
    """Gaps of an exponential distribution: mean and standard deviation are both 1 / rate."""
    gaps = np.diff(poisson_arrivals(1, 4.0, 4001))
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(0.25, rel=0.06)
    assert gaps.std() == pytest.approx(0.25, rel=0.06)


def test_stagger() -> None:
    delays = stagger(1, 1000, 0.01)
    assert len(delays) == 1000
    assert 0 <= min(delays) < 0.5
    assert 9.5 < max(delays) <= 10
