"""Say how much of a step prompts may take beside sequences that decode. Host only, no jax, no clock.

Where padding costs nothing, a step takes as long as its tokens need, so how full it is decides between first
tokens that come early and tokens that come evenly. The rule has three parts:

1. A step takes ``STRETCH`` times the step of its decodes alone at most. Prompts then get five parts of six of the time
   whatever the device and the model, and more of it would bring first tokens forward by little.
2. Where a prompt would be computed later than in ``EARLY`` of the time that FastGen gives it, steps take as much longer
   as brings it there, up to full ones.
3. Still they take no longer than ``INTER_TOKEN`` seconds, FastGen's target of 4 tokens a second, unless prompts would
   then get less than half of the time.

Where a step costs the same however full it is, none of this leaves a token out. docs/tuning.md has what other values
give. FastGen: arXiv 2401.08671, 4.2 has both targets.
"""

from collections.abc import Iterable
from math import inf

from jaxgen.core.sequence import Sequence
from jaxgen.scheduling.step_time import LEAST_CHUNK, MARGIN, Decodes, StepTimeModel

STRETCH = 6.0
PROMPT_RATE = 512.0
"""Tokens of a prompt for each of which FastGen gives the first token a further 1 / 512 s."""
EARLY = 0.5
INTER_TOKEN = 0.25
LEAST_SHARE = 0.5
"""Of the time of a step, for prompts, whatever that makes of the time between tokens."""
MOST_REGARDED = 32
"""Prompts whose due times are regarded, the first in the order of service: more would make planning slow."""


def target(num_prompt: int) -> float:
    """Return the seconds to the first token that FastGen grants a prompt of so many tokens."""
    return num_prompt / PROMPT_RATE


def longest_gap(step_time: StepTimeModel, rows: int, positions: int = 0) -> float:
    """Return the most seconds that a step is made to take in which ``rows`` sequences decode, whose context lengths sum
    to ``positions``."""
    bound = _bound(step_time.wide.seconds(rows, positions))
    return min(step_time.wide.seconds(step_time.token_budget, positions), bound)


def beside(step_time: StepTimeModel, rows: int) -> Decodes:
    """Return ``rows`` sequences that decode, with the time between tokens that this rule gives them beside prompts of
    which none must be early."""
    gap = min(STRETCH * step_time.wide.seconds(rows), longest_gap(step_time, rows))
    return Decodes(rows, targets=(gap / MARGIN,) if rows else ())


def seconds_for_prompts(
    step_time: StepTimeModel, rows: int, positions: int, prompts: Iterable[tuple[Sequence, float]]
) -> float:
    """Return the seconds for prompts of a step in which ``rows`` sequences decode; ``positions`` as above.

    ``prompts``: those to compute, in the order of service, each with the seconds left until it should have its first
    token. inf: nothing decodes.
    """
    if rows == 0:
        return inf
    cost = step_time.wide
    alone, each = cost.seconds(rows, positions), cost.per_token
    wanted, most, ahead = (STRETCH - 1.0) * alone, _bound(alone) - alone, 0.0
    for sequence, left in prompts:
        if wanted >= most:
            break
        ahead += each * sequence.num_to_compute
        share = ahead / (MARGIN * left) if left > 0.0 else 1.0  # of the time until then
        wanted = max(wanted, alone * share / (1.0 - share) if share < 1.0 else inf)
    return max(min(wanted, most), LEAST_CHUNK * each)


def _bound(alone: float) -> float:
    """Return the most seconds of a step whose decodes alone take ``alone``."""
    return max(MARGIN * INTER_TOKEN, alone / LEAST_SHARE)
