"""Classes of service: what is promised to the requests of each, in seconds. Host only, no jax, no clock."""

from dataclasses import dataclass

STARVATION_TIMEOUT_S = 60.0
"""Seconds after which a request to which nothing was promised is served like those to which something was, and seconds
until the next one is: so they all go on, and however many they are, promises are broken for one of them at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceClass:
    """Targets of a class of requests. With none, its requests get what those with targets leave.

    The target for the time to the first token may grow with the prompt, as FastGen's does (512 tokens a second,
    arXiv 2401.08671, 4.3). Raises ValueError that names the field when a value is out of range.
    """

    name: str = "default"
    first_token_seconds: float | None = None
    prompt_rate: float | None = None
    """Tokens of a prompt for which the target grows by a second; None: it does not grow."""
    inter_token_seconds: float | None = None
    serve_late: bool = False
    """Requests whose targets will be missed are served all the same; else they are refused when they come."""

    def __post_init__(self) -> None:
        for name in ("first_token_seconds", "prompt_rate", "inter_token_seconds"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, not {value}")

    @property
    def promises(self) -> bool:
        return (self.first_token_seconds, self.prompt_rate, self.inter_token_seconds) != (None, None, None)

    def first_token_target(self, num_prompt: int) -> float | None:
        """Seconds from a request's arrival to its first token, for a prompt of so many tokens; None: no target."""
        if self.first_token_seconds is None and self.prompt_rate is None:
            return None
        return (self.first_token_seconds or 0.0) + (num_prompt / self.prompt_rate if self.prompt_rate else 0.0)

    def without_targets(self) -> "ServiceClass":
        """The same for requests of it to which nothing can be promised."""
        return ServiceClass(name=self.name, serve_late=self.serve_late)


DEFAULT_CLASS = ServiceClass()
"""The class of requests that name none, where no other default is configured."""
