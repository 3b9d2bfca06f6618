"""Predict what a request that comes now gets. Host only, no jax, no clock."""

from dataclasses import dataclass

from jaxgen.scheduling.prefill_limits import DEFAULT_LIMITS, PROMISED_PROMPT
from jaxgen.scheduling.step_time import StepTimeModel


@dataclass(frozen=True, slots=True)
class StepPace:
    """Predictions by a model of steps, of which one in 100 takes more than ``spread`` times what it says.

    They are computed when they are asked for, since every step leaves one. ``running``: sequences; ``most_running``: as
    many as a step may have. ``waiting_tokens``: of the prompts that wait.
    """

    step_time: StepTimeModel
    spread: float
    running: int
    most_running: int
    waiting_tokens: int

    @property
    def longest_step(self) -> float:
        return self._longest(min(self.most_running, self.running + 1))

    @property
    def longest_full_step(self) -> float:
        return self._longest(self.most_running)

    @property
    def first_token(self) -> float:
        decodes = DEFAULT_LIMITS.usual_decodes(self.step_time, self.running)
        return self.step_time.prompt_seconds(PROMISED_PROMPT + self.waiting_tokens, PROMISED_PROMPT**2 // 2, decodes)

    def _longest(self, rows: int) -> float:
        return self.spread * DEFAULT_LIMITS.longest(self.step_time, rows)
