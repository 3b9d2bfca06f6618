"""Refuse a model whose logits are not finite, before the first request."""

from dataclasses import replace

import numpy as np

from jaxgen.core.config import EngineConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.finite import EMBEDDING
from jaxgen.runner.interface import Runner
from jaxgen.runner.timing import dummy_sequence
from jaxgen.scheduling.scheduler import Scheduler


def check_finite(device: Runner, model: ModelConfig, config: EngineConfig) -> None:
    """Run a prompt of tokens from the whole vocabulary, which fills a step, and look at hidden states and logits.

    Raises ConfigError that names the first layer with NaN or infinity. Leaves the device's cache and rows used: reset
    it after.
    """
    plan = _plan(model, config)
    output = device.run(plan)
    # A token whose logit is NaN is never sampled, which does no harm. If all are, the chosen one's logprob is -inf.
    hidden, chosen = (np.asarray(array, np.float32) for array in (output.hidden, output.logprobs.chosen))
    if np.isfinite(hidden[: plan.num_tokens]).all() and np.isfinite(chosen[:1]).all():
        return
    device.reset()
    layer = device.first_not_finite(plan)
    where = f"layer {layer} of layers 0 to {model.num_layers - 1}"
    if layer == EMBEDDING:
        where = "the embeddings"
    elif layer == model.num_layers:
        where = "the final norm or the head"
    range_ = "; or they are too large for float16: try --dtype float32" if model.dtype == "float16" else ""
    raise ConfigError(f"the model computes NaN or infinity, first in {where}: its weights are damaged{range_}")


def _plan(model: ModelConfig, config: EngineConfig) -> StepPlan:
    length = min(config.scheduler.token_budget, config.scheduler.max_model_len - 1, config.cache.num_slots)
    prompt = tuple(np.linspace(0, model.vocab_size - 1, length).astype(int).tolist())
    # Where prefixes are kept, a prompt would be cut for the snapshot of its state.
    scheduler = Scheduler(replace(config.scheduler, prefix_caching=False), config.cache)
    scheduler.add(dummy_sequence(0, prompt, SamplingParams(max_tokens=1, temperature=0.0, logprobs=1)))
    return scheduler.schedule()
