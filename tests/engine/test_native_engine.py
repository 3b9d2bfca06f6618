"""The engine on the native kernels: the answers of XLA's, and the same bits under any schedule."""

from dataclasses import replace

import numpy as np
import pytest

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import DType
from jaxgen.core.request import Request, TokenEvent
from jaxgen.kernels.choice import native
from jaxgen.models.packed_weight import PackedWeight
from jaxgen.models.placement import pack_params
from tests.support.engines import LLAMA, engine_config, make_engine, params_of, request, run, tokens
from tests.support.native import native as library

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, LLAMA.vocab_size, size=n).tolist() for n in (1, 5, 16, 17, 33, 70, 120)]
ROOMY, SCARCE = engine_config(), engine_config(num_blocks=32, token_budget=9)


def requests() -> list[Request]:
    """Greedy and seeded, with and without penalties, all with log-probabilities."""
    ways = [{"temperature": 0.0}, {"seed": 5, "top_p": 0.9}, {"seed": 6, "presence_penalty": 1.0, "top_k": 20}]
    return [
        request(f"r{i}", prompt, max_tokens=12, ignore_eos=True, logprobs=5, **ways[i % 3])
        for i, prompt in enumerate(PROMPTS)
    ]


def without_cached(events: list[TokenEvent]) -> list[TokenEvent]:
    return [replace(event, cached_tokens=None) for event in events]


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("dtype", "config"),
    [
        ("float32", ROOMY),
        ("bfloat16", SCARCE),
        pytest.param("bfloat16", ROOMY, marks=pytest.mark.full),
        pytest.param("float32", SCARCE, marks=pytest.mark.full),
    ],
)
def test_a_request_has_the_same_bits_alone_and_under_any_schedule(dtype: DType, config: EngineConfig) -> None:
    """Full: each dtype with the other's configuration."""
    model, kernels = replace(LLAMA, dtype=dtype), native(library())
    events = run(make_engine(model, config, kernels), requests())
    for one in requests():
        alone = run(make_engine(model, config, kernels), [one])[one.request_id]
        assert without_cached(events[one.request_id]) == without_cached(alone), one.request_id


def test_the_answers_are_those_of_the_reference_kernels() -> None:
    fast, plain = make_engine(kernels=native(library())), make_engine()
    assert (fast.journal.skips_padding, plain.journal.skips_padding) == (True, False)
    found, expected = run(fast, requests()), run(plain, requests())
    for name, events in expected.items():
        assert tokens(found[name]) == tokens(events)
        for got, want in zip(found[name], events, strict=True):
            assert got.logprobs is not None
            assert want.logprobs is not None
            assert got.logprobs.logprob == pytest.approx(want.logprobs.logprob, abs=1e-4)


def test_packing_takes_every_matrix_once_and_leaves_the_rest() -> None:
    kernels = native(library())
    params = dict(params_of(LLAMA))
    packed = pack_params(LLAMA, params, kernels)
    assert not params
    kinds = {path for path, value in packed.items() if isinstance(value, PackedWeight)}
    matrices = {path for path, value in params_of(LLAMA).items() if path.endswith(".weight") and "norm" not in path}
    assert kinds == matrices - {"embed.weight"}, "an untied embedding is only looked up"
    again = pack_params(LLAMA, dict(packed), kernels)
    assert all(again[path] is value for path, value in packed.items())
