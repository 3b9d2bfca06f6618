"""A model whose logits are not finite is refused at the start, and the first bad layer is named."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.core.config import EngineConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.finite import check_finite
from jaxgen.engine.start.runners import Compiled
from jaxgen.kernels.choice import native
from jaxgen.runner.interface import Runner
from tests.support.engines import EOS, LLAMA, compiled_step, engine_config, params_of
from tests.support.native import native as library
from tests.support.streamed import SMALL, compiled_layers, streamed

FLOAT16 = replace(LLAMA, dtype="float16")
ALL = slice(None)


def start(model: ModelConfig, config: EngineConfig, compiled: Compiled, name: str, place: Any, value: float) -> None:
    """Start an engine with one weight of this value."""
    params: dict[str, Any] = dict(params_of(model))
    array = np.array(params[name])
    array[place] = value
    params[name] = jnp.asarray(array)
    build_engine(model, config, params, frozenset({EOS}), compiled=compiled)


@pytest.mark.parametrize(
    ("name", "place", "value", "where"),
    [
        ("embed.weight", (-1, 5), np.nan, "first in the embeddings"),
        ("layers.attn.qkv.weight", (1, 3, 3), np.nan, "first in layer 1 of layers 0 to 1"),
        ("layers.mlp.down.weight", (0, 5, 7), np.inf, "first in layer 0 of layers 0 to 1"),
        ("lm_head.weight", (ALL, 0), np.nan, "first in the final norm or the head"),
    ],
)
def test_the_first_bad_layer_is_named(name: str, place: Any, value: float, where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        start(LLAMA, engine_config(), compiled_step(LLAMA, engine_config()), name, place, value)


def test_of_packed_weights_too() -> None:
    compiled = compiled_step(LLAMA, engine_config(), native(library()))
    with pytest.raises(ConfigError, match="first in layer 1 of layers 0 to 1"):
        start(LLAMA, engine_config(), compiled, "layers.attn.qkv.weight", (1, 3, 3), np.nan)


def test_of_a_streamed_cache_too() -> None:
    with pytest.raises(ConfigError, match="first in layer 1 of layers 0 to 1"):
        start(SMALL, streamed("plan"), compiled_layers(SMALL), "layers.mlp.down.weight", (1, 5, 7), np.nan)


def test_more_than_float16_holds_has_a_hint() -> None:
    compiled = compiled_step(FLOAT16, engine_config())
    with pytest.raises(ConfigError, match=r"layer 1 .*too large for float16: try --dtype float32"):
        start(FLOAT16, engine_config(), compiled, "layers.attn.out.weight", (1, ALL, ALL), 6e4)


def test_the_prompt_fills_a_step_where_states_have_snapshots_too() -> None:
    config, device = engine_config(), MagicMock(spec=Runner)
    config = replace(config, cache=replace(config.cache, num_snapshots=8))
    device.run.return_value = SimpleNamespace(hidden=np.zeros(1), logprobs=SimpleNamespace(chosen=np.zeros(1)))
    check_finite(device, LLAMA, config)
    (chunk,) = device.run.call_args.args[0].chunks
    assert chunk.samples
    assert chunk.length == config.scheduler.token_budget
