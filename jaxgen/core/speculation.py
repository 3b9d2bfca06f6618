"""Configure how tokens are drafted: the JSON of ``--speculative-config``. Host only, no jax."""

import json
from dataclasses import dataclass, fields
from typing import Any

from jaxgen.core.errors import ConfigError

FLAG = "--speculative-config"
DEFAULT_LOOKUP = 2, 5
"""Fewest and most tokens that are looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramConfig:
    """Drafts are what followed when the last tokens of a request came in its own tokens before.

    Fields of vLLM's SpeculativeConfig. Raises ConfigError that names the key.
    """

    num_speculative_tokens: int = 15
    """Most drafts of a request in a step."""
    prompt_lookup_min: int | None = None
    """Fewest tokens that must be found; None: as many as ``prompt_lookup_max``, or 2."""
    prompt_lookup_max: int | None = None
    """Most tokens that are looked up; None: as many as ``prompt_lookup_min``, or 5."""

    def __post_init__(self) -> None:
        _check_whole("num_speculative_tokens", self.num_speculative_tokens, 1)
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 1)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixConfig:
    """Drafts are what mostly followed the last tokens of a request, in its own tokens and in answers that ended.

    Fields of vLLM's SpeculativeConfig. Raises ConfigError that names the key.
    """

    num_speculative_tokens: int | None = None
    """Most drafts of a request in a step; None: as many as ``suffix_decoding_max_tree_depth``."""
    suffix_decoding_max_tree_depth: int = 24
    """Most tokens that are looked up."""
    suffix_decoding_max_cached_requests: int = 10_000
    """Most answers that are kept; 0: none."""
    suffix_decoding_max_spec_factor: float = 1.0
    """Most drafts for each token found."""
    suffix_decoding_min_token_prob: float = 0.1
    """Least share of the places found that go on with the drafts."""

    def __post_init__(self) -> None:
        if self.num_speculative_tokens is not None:
            _check_whole("num_speculative_tokens", self.num_speculative_tokens, 1)
        _check_whole("suffix_decoding_max_tree_depth", self.suffix_decoding_max_tree_depth, 1)
        _check_whole("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, 0)
        factor, share = self.suffix_decoding_max_spec_factor, self.suffix_decoding_min_token_prob
        if type(factor) not in (int, float) or not factor >= 0:
            raise ConfigError(f"{FLAG}: suffix_decoding_max_spec_factor must be a number of 0 or more, not {factor!r}")
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise ConfigError(f"{FLAG}: suffix_decoding_min_token_prob must be a number from 0 to 1, not {share!r}")

    @property
    def most_drafts(self) -> int:
        """Most drafts of a request in a step."""
        return self.num_speculative_tokens or self.suffix_decoding_max_tree_depth


SpeculationConfig = NgramConfig | SuffixConfig
METHODS: dict[str, type[NgramConfig] | type[SuffixConfig]] = {"ngram": NgramConfig, "suffix": SuffixConfig}


def parse_speculation(text: str | None) -> SpeculationConfig | None:
    """Return the configuration of a flag's JSON; None: there are no drafts. Raises ConfigError."""
    if text is None:
        return None
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{FLAG} is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError(f'{FLAG} must be an object, as {{"method": "ngram"}}, not {text!r}')
    method = given.pop("method", "")
    made = METHODS.get(method) if isinstance(method, str) else None
    if made is None:  # before the keys, which are those of another method
        raise ConfigError(f"{FLAG}: method must be 'ngram' or 'suffix', the only ones that are done, not {method!r}")
    known = [field.name for field in fields(made)]
    for name in given:
        if name not in known:
            raise ConfigError(f"{FLAG}: unknown key {name!r}; method {method!r} has {', '.join(known)}")
    return made(**given)


def _check_whole(name: str, value: object, least: int) -> None:
    """Raise ConfigError unless a value is a whole number from ``least``."""
    if type(value) is not int:
        raise ConfigError(f"{FLAG}: {name} must be a whole number, not {value!r}")
    if value < least:
        raise ConfigError(f"{FLAG}: {name} must be {least} or more, not {value}")
