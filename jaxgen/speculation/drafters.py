"""Choose the drafter of a configuration. Host only, no jax."""

from typing import assert_never

from jaxgen.core.speculation import NgramConfig, SpeculationConfig, SuffixConfig
from jaxgen.scheduling.drafts import Drafter
from jaxgen.speculation.lookup import LookupDrafter
from jaxgen.speculation.suffix import SuffixDrafter


def drafter_of(config: SpeculationConfig) -> Drafter:
    """Return the drafter of a method."""
    match config:
        case NgramConfig():
            return LookupDrafter(config)
        case SuffixConfig():
            return SuffixDrafter(config)
        case _:
            assert_never(config)
