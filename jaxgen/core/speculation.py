"""Configure how tokens are drafted: the JSON of ``--speculative-config``. Host only, no jax."""

import json
from dataclasses import dataclass, fields
from typing import Any

from jaxgen.core.errors import ConfigError

FLAG = "--speculative-config"
METHOD = "ngram"
DEFAULT_LOOKUP = 2, 5
"""Fewest and most tokens that are looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Fields of vLLM's SpeculativeConfig. Raises ConfigError that names the key.

    Drafts are what followed when the last tokens of a request came in its own tokens before.
    """

    method: str
    num_speculative_tokens: int = 15
    """Most drafts of a request in a step."""
    prompt_lookup_min: int | None = None
    """Fewest tokens that must be found; None: as many as ``prompt_lookup_max``, or 2."""
    prompt_lookup_max: int | None = None
    """Most tokens that are looked up; None: as many as ``prompt_lookup_min``, or 5."""

    def __post_init__(self) -> None:
        if self.method != METHOD:
            raise ConfigError(f"{FLAG}: method must be '{METHOD}', the only one that is done, not {self.method!r}")
        for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name.startswith("prompt")):
                raise ConfigError(f"{FLAG}: {name} must be a whole number, not {value!r}")
            if value is not None and value < 1:
                raise ConfigError(f"{FLAG}: {name} must be 1 or more, not {value}")
        low, high = self.lookup
        if low > high:
            raise ConfigError(f"{FLAG}: prompt_lookup_min {low} must be at most prompt_lookup_max {high}")

    @property
    def lookup(self) -> tuple[int, int]:
        """The fewest and the most tokens that are looked up."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is None and high is None:
            return DEFAULT_LOOKUP
        return low or high or 1, high or low or 1


def parse_speculation(text: str | None) -> SpeculationConfig | None:
    """Return the configuration of a flag's JSON; None: there are no drafts. Raises ConfigError."""
    if text is None:
        return None
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{FLAG} is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        example = f'{{"method": "{METHOD}", "num_speculative_tokens": 8}}'
        raise ConfigError(f"{FLAG} must be an object, as {example}, not {text!r}")
    if given.get("method") != METHOD:  # before the keys, which are those of another method
        return SpeculationConfig(method=given.get("method", ""))
    known = [field.name for field in fields(SpeculationConfig)]
    for name in given:
        if name not in known:
            raise ConfigError(f"{FLAG}: unknown key {name!r}; there are {', '.join(known)}")
    return SpeculationConfig(**given)
