"""Divide a model between as many devices as the options say. Imports no jax."""

from typing import Any

from jaxgen.core.config import EngineOptions
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.division import FLAG, Division
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig

_UNDIVIDED: dict[str, Any] = {
    "kv_offloading_size": 0.0,
    "kv_residency": "device",
    "kv_offload_inputs": False,
    "kv_tier": None,
    "kv_tier_dir": None,
    "speculative_config": None,
}
"""Options that need one device, and the values that ask for nothing."""


def check_division(options: EngineOptions) -> None:
    """Raise ConfigError for options that a divided model does not have yet."""
    ranks = options.tensor_parallel_size
    if ranks < 1:
        raise ConfigError(f"{FLAG} must be 1 or more, not {ranks}")
    for name, nothing in _UNDIVIDED.items():
        if ranks > 1 and getattr(options, name) != nothing:
            raise ConfigError(f"{FLAG} {ranks} does not go with --{name.replace('_', '-')} yet: drop one of the two")


def divide(model: ModelConfig, options: EngineOptions) -> Division | None:
    """Return how the model is divided; None: one device has it. Raises ConfigError."""
    if options.tensor_parallel_size == 1:
        return None
    assert isinstance(model, DecoderConfig)
    return Division(model, options.tensor_parallel_size)
