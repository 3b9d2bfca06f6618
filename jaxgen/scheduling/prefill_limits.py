"""Decide how much of a step prompts may take if sequences decode. Host only, no jax, no clock.

Where padding costs nothing, a step takes as long as its tokens need. Full steps bring first tokens early; short steps
bring the other tokens evenly. docs/tuning.md compares the rules. FastGen's targets are those of
arXiv 2401.08671, 4.3: the first token after prompt tokens / 512 s, and 4 tokens a second.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from jaxgen.scheduling.step_time import LEAST_CHUNK, MARGIN, Decodes, StepTimeModel

PROMPT_RATE = 512.0
"""Tokens of a prompt for each of which FastGen gives the first token a further 1 / 512 s."""
PROMISED_PROMPT = 1000
"""Tokens of the prompts that promises are about."""
MOST_REGARDED = 32
"""Prompts whose due times are regarded, the first in the order of service: more would make planning slow."""


def target(num_prompt: int) -> float:
    """Return the seconds to the first token that FastGen grants a prompt of ``num_prompt`` tokens."""
    return num_prompt / PROMPT_RATE


class DuePrompt(NamedTuple):
    """A prompt of ``length`` tokens with ``tokens`` to compute; ``granted``: the seconds left of the time that FastGen
    grants its first token."""

    tokens: int
    length: int
    granted: float


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """Limits of the seconds of steps in which sequences decode and prompts are computed.

    - A step takes at most ``stretch`` times its decodes alone. With 6, prompts get 5/6 of the time on any device and
      model. More would bring first tokens forward by little.
    - If a prompt's first token would come later than ``early`` of the time that FastGen grants it, steps take longer,
      up to full ones.
    - A step may take longer by the time of its decodes alone, if that ends a prompt. The rest would cost the prompt one
      more step, and the decodes get two tokens in the same time either way.
    - Still steps take at most ``gap`` seconds, or ``late_gap`` if a prompt would be late, unless prompts would then get
      less than ``least`` of the time.
    - If nothing decodes, they take at most the larger of ``gap`` and the time of ``chunk`` prompt tokens, because the
      next request waits for their end.

    If a full step costs the same as any other, these rules leave no token out.
    """

    stretch: float = 6.0
    early: float = 0.5
    gap: float = 0.25
    late_gap: float = 0.25
    least: float = 0.5
    chunk: int = 256

    def longest(self, step_time: StepTimeModel, rows: int, contexts: int = 0) -> float:
        """Return the most seconds of a step in which ``rows`` sequences decode and prompts are computed.

        The context lengths of the decodes sum to ``contexts``. Prompts have PROMISED_PROMPT tokens; on average half of
        them come before each token.
        """
        budget, alone = step_time.token_budget, step_time.wide.seconds(rows, contexts=contexts)
        bound = self._bound(alone, self.late_gap)
        return min(step_time.wide.seconds(budget, budget * PROMISED_PROMPT // 2, contexts), bound)

    def usual_decodes(self, step_time: StepTimeModel, rows: int) -> Decodes:
        """Return ``rows`` sequences that decode, with their time between tokens if no prompt needs to be early."""
        alone = step_time.wide.seconds(rows)
        gap = min(self.stretch * alone, self._bound(alone, self.gap), self.longest(step_time, rows))
        return Decodes(rows, targets=(gap / MARGIN,) if rows else ())

    def seconds_for_prompts(
        self, step_time: StepTimeModel, rows: int, contexts: int, prompts: Iterable[DuePrompt]
    ) -> float:
        """Return the seconds for prompts of a step; ``rows`` and ``contexts`` as of ``longest``.

        ``prompts``: those to compute, in the order of service.
        """
        cost = step_time.wide
        if rows == 0:
            return max(MARGIN * self.gap, self.chunk * cost.per_token)
        alone, each = cost.seconds(rows, contexts=contexts), cost.per_token
        most, ahead = self._bound(alone, self.late_gap) - alone, 0.0
        wanted = min((self.stretch - 1.0) * alone, self._bound(alone, self.gap) - alone)
        for prompt in prompts:
            if wanted >= most:
                break
            ahead += each * prompt.tokens
            left = prompt.granted - (1.0 - self.early) * target(prompt.length)
            share = ahead / (MARGIN * left) if left > 0.0 else 1.0  # of the time until then
            wanted = max(wanted, alone * share / (1.0 - share) if share < 1.0 else inf)
        return max(min(wanted, most), LEAST_CHUNK * each)

    def spare(self, step_time: StepTimeModel, rows: int, contexts: int, seconds: float) -> float:
        """Return by how much prompts may exceed their ``seconds`` to end one.

        ``rows`` and ``contexts`` as of ``longest``.
        """
        alone = step_time.wide.seconds(rows, contexts=contexts)
        if rows == 0:
            return alone
        return max(0.0, min(alone, self._bound(alone, self.gap) - alone - seconds))

    def _bound(self, alone: float, gap: float) -> float:
        """Return the most seconds of a step whose decodes alone take ``alone``, for this gap between tokens."""
        return max(MARGIN * gap, alone / self.least)


DEFAULT_LIMITS = PrefillLimits()
GPU_LIMITS = PrefillLimits(gap=0.012, late_gap=0.033)
"""For steps of milliseconds. docs/simulation.md has what they give."""
