"""Decide whether an engine may have drafts. Host only, no jax."""

from jaxgen.core.config import EngineOptions, SchedulerConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.speculation import FLAG, SpeculationConfig, parse_speculation


def speculation_of(
    options: EngineOptions, model: ModelConfig, scheduler: SchedulerConfig, *, is_cpu: bool, streams: bool
) -> SpeculationConfig | None:
    """Return how tokens are drafted; None: they are not. ``streams``: the KV cache is in host memory.

    Raises ConfigError that names what has no drafts.
    """
    config = parse_speculation(options.speculative_config)
    if config is None:
        return None
    for refused, reason in (
        (not is_cpu, "needs a CPU: on a GPU a step begins before the tokens of the one before it are known"),
        (bool(model.states), "needs a model whose layers all attend: a state cannot take a wrong draft back"),
        (streams, "needs --kv-residency device: a streamed block may hold no wrong draft"),
        (scheduler.max_num_seqs < 2, "needs --max-num-seqs 2 or more: drafts take the rows that requests leave"),
    ):
        if refused:
            raise ConfigError(f"{FLAG} {reason}")
    return config
