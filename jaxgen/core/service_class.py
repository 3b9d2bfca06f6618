"""Service classes: latency targets for their requests, in seconds. Host only, no jax, no clock."""

from dataclasses import dataclass

STARVATION_TIMEOUT_S = 60.0
"""Seconds after which a best-effort request is promoted: it is then served like requests with targets. The next one is
promoted after the same time again. So all best-effort requests advance, and however many wait, only one of them in that
time can make others miss their targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceClass:
    """Targets of a class of requests. Requests of a class without targets get the tokens that others leave.

    The target for the time to the first token may grow with the prompt, as FastGen's does (512 tokens a second,
    arXiv 2401.08671, 4.3). Raises ValueError that names the field if a value is out of range.
    """

    name: str = "default"
    first_token_seconds: float | None = None
    prompt_rate: float | None = None
    """Prompt tokens for each second by which the target grows; None: it does not grow."""
    inter_token_seconds: float | None = None
    serve_late: bool = False
    """Whether requests that will miss a target are served without targets, instead of refused when they arrive."""

    def __post_init__(self) -> None:
        for name in ("first_token_seconds", "prompt_rate", "inter_token_seconds"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, not {value}")

    @property
    def has_targets(self) -> bool:
        return (self.first_token_seconds, self.prompt_rate, self.inter_token_seconds) != (None, None, None)

    def first_token_target(self, num_prompt: int) -> float | None:
        """Return the target in seconds from arrival to first token for a prompt of ``num_prompt`` tokens, if any."""
        if self.first_token_seconds is None and self.prompt_rate is None:
            return None
        return (self.first_token_seconds or 0.0) + (num_prompt / self.prompt_rate if self.prompt_rate else 0.0)

    def without_targets(self) -> "ServiceClass":
        """Return this class without targets, for requests that would miss them."""
        return ServiceClass(name=self.name, serve_late=self.serve_late)


DEFAULT_CLASS = ServiceClass()
"""The class of requests that name no class, if no other default is configured."""
