"""Models of which some layers have states, with their K and V in host memory: the bits of a cache on the device."""

from dataclasses import replace

import numpy as np
import pytest

from jaxgen.core.config import EngineConfig, StreamConfig
from jaxgen.core.request import TokenEvent
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.runners import compile_for
from jaxgen.layerwise.planning.layer_store import LayerStore
from tests.engine.test_states import MODELS, PROMPTS, alone, bits, config, requests
from tests.support.engines import params_of, request, run


def streamed() -> EngineConfig:
    """With blocks for two of the longest requests."""
    plain = config()
    limits, size = plain.scheduler, plain.cache.block_size
    num_open = LayerStore.most_open(limits.token_budget, limits.max_num_seqs, size) + 2
    cache = replace(plain.cache, num_blocks=16)
    return replace(plain, cache=cache, streaming=StreamConfig(num_open, 3, False, "transfer"))


def engine(model: str) -> Engine:
    compiled = compile_for(MODELS[model], streamed())
    return build_engine(MODELS[model], streamed(), dict(params_of(MODELS[model])), frozenset(), compiled=compiled)


@pytest.mark.full
@pytest.mark.shipped
@pytest.mark.parametrize("model", MODELS)
def test_layers_with_states_stay_on_the_device(model: str) -> None:
    """One after another, where prefixes are found again; then together, where some are preempted; then a rehearsal."""
    expected, engine_, found = alone(model), engine(model), dict[str, list[TokenEvent]]()
    for _ in range(2):
        for one in requests():
            found |= run(engine_, [one])
        assert bits(found) == expected
    assert found["r2"][0].cached_tokens
    for _ in range(2):
        assert bits(run(engine_, requests())) == expected
    stats = engine_.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
    assert stats.compilations_after_ready == 0
    assert stats.offload is not None
    assert stats.offload.restored_tokens > 0
    assert stats.offload.projected_tokens == 0
    engine_.add(request("again", PROMPTS[1], max_tokens=9, ignore_eos=True))
    for _ in range(4):
        engine_.step()
    plan, runner = engine_.scheduler.schedule(), engine_.runner
    assert plan.decodes_only
    with runner.rehearsal():
        rehearsed = runner.run(plan)
    np.testing.assert_array_equal(np.asarray(rehearsed.hidden)[0], np.asarray(runner.run(plan).hidden)[0])
