"""What is shown of each family: checks on recorded checkpoints that return figures, for tests and for a table. Needs no
pytest."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from scipy.special import log_softmax

from jaxgen.core.config import CacheConfig, EngineConfig, OffloadConfig, SchedulerConfig, StreamConfig
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.request import Request, TokenEvent
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.runners import compile_for
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.planning.layer_store import LayerStore
from jaxgen.models.model import Params
from jaxgen.models.placement import pack_params
from jaxgen.offload.build import Offload
from jaxgen.offload.tiers.offload_tier import Split
from jaxgen.tools.determinism import Scenario, Verifier
from jaxgen.weights.convert import command as convert
from jaxgen.weights.load import load_model_config, load_params
from tests.support.engines import compiled_step, request, run, tokens
from tests.support.golden_runs import SMALL, fitted, greedy_tokens, load_golden, logits_of_chunks, make_forward
from tests.support.goldens import GOLDENS, Golden, golden_answers
from tests.support.nan_padding import with_nan_in_padding

TIGHT = EngineConfig(CacheConfig(8, 16), SchedulerConfig(16, 8, 128), seed=0, max_logit_bias=4)
"""Blocks for one sequence of full length: the others are preempted."""
HOSTED = EngineConfig(
    CacheConfig(8, 16, keep_inputs=True), SchedulerConfig(16, 4, 128), 0, 4, offload=OffloadConfig(64, "transfer")
)
"""Blocks for one sequence of full length on the device, and for all in host memory."""
STREAMED = replace(SMALL, streaming=StreamConfig(LayerStore.most_open(16, 4, 8) + 2, 3, True, "recompute"))
VERIFIED = EngineConfig(CacheConfig(8, 24), SchedulerConfig(16, 8, 96), seed=0, max_logit_bias=4)


@dataclass(frozen=True)
class Circumstances:
    """In which a family must give the recorded tokens: by native kernels or XLA's, from the files as they are or
    converted ones, with or without preemptions, and where the cache is."""

    native: bool
    converted: bool
    preempted: bool
    cache: Literal["on the device", "offloaded", "streamed"]

    def __str__(self) -> str:
        words = ["native" if self.native else "XLA", *(["converted"] if self.converted else [])]
        return ", ".join([*words, *(["preempted"] if self.preempted else []), self.cache])


CROSS = (
    Circumstances(True, True, True, "on the device"),
    Circumstances(False, False, False, "on the device"),
    Circumstances(True, False, False, "offloaded"),
    Circumstances(False, True, True, "offloaded"),
    Circumstances(True, False, True, "streamed"),
    Circumstances(False, True, False, "streamed"),
)
"""Each pair of values of any two of the four is in one of them, which as many rows as these can have."""
_STREAMING = StreamConfig(LayerStore.most_open(16, 8, 8) + 2, 3, False, "transfer")
_LIMITS = {
    "on the device": TIGHT,
    "offloaded": replace(TIGHT, cache=CacheConfig(8, 16, keep_inputs=True), offload=OffloadConfig(64, "transfer")),
    "streamed": replace(TIGHT, streaming=_STREAMING),
}
"""All have blocks for one sequence of full length."""


def assert_right(name: str, case: Circumstances, kernels: Kernels) -> None:
    """Assert that all prompts get the recorded tokens: one after another, or twice at once, where some are preempted.

    With a cache in host memory each comes twice, so that what left the device comes back; what can be made of layer
    inputs is.
    """
    config, params = _converted(name) if case.converted else load_golden(name)
    limits = fitted(_LIMITS[case.cache], config)
    compiled = compile_for(config, limits, kernels)
    engine = build_engine(config, limits, dict(params), frozenset(), compiled=compiled)
    if case.cache == "offloaded":
        assert isinstance(engine.offload, Offload)
        engine.offload.tier.planner = _project
    answers, turns = golden_answers(name), 1 if case.cache == "on the device" and not case.preempted else 2
    pairs = [(answer, one) for turn in range(turns) for answer, one in zip(answers, wanted(answers, turn), strict=True)]
    groups = [pairs] if case.preempted else [[pair] for pair in pairs]
    for group in groups:
        events = run(engine, [one for _, one in group])
        for answer, one in group:
            assert tokens(events[one.request_id]) == answer.greedy, one.request_id
    stats = engine.stats()
    assert (stats.preemptions > 0) == case.preempted
    if case.cache == "offloaded":
        assert stats.offload is not None
        assert stats.offload.restored_tokens + stats.offload.projected_tokens > 0


def _converted(name: str) -> tuple[ModelConfig, Params]:
    with TemporaryDirectory() as folder:
        convert.main([str(GOLDENS / name), f"{folder}/converted", "--dtype", "float32"])
        config = load_model_config(Path(folder, "converted")).within(SMALL.scheduler.max_model_len)
        return config, load_params(Path(folder, "converted"), config, progress=False)


@cache
def load_in(name: str, dtype: DType) -> tuple[ModelConfig, Params]:
    """Return configuration and parameters in a dtype; of float32 as ``load_golden`` does."""
    config, params = load_golden(name)
    if dtype == "float32":
        return config, params
    return replace(config, dtype=dtype), load_params(GOLDENS / name, replace(config, dtype=dtype), progress=False)


def bfloat16_error(name: str, kernels: Kernels = REFERENCE) -> float:
    """Return the mean difference of log-probabilities in bfloat16 to the recorded ones of the longest prompt."""
    answer = max(golden_answers(name), key=lambda answer: len(answer.prompt))
    config, params = load_in(name, "bfloat16")
    packed = pack_params(config, dict(params), kernels)
    limits = fitted(SMALL, config)
    logits = logits_of_chunks(make_forward(config, limits), config, packed, answer, limits, kernels)[answer.rows]
    found, told = (log_softmax(one.astype(np.float64), axis=-1) for one in (logits, answer.logits))
    return float(np.abs(found - told).mean())


def greedy_is_right(name: str, limits: EngineConfig = SMALL, times: int = 1) -> tuple[bool, int]:
    """Return whether all prompts at once, chunked and mixed, give the recorded tokens, and how many were preempted."""
    answers = golden_answers(name) * times
    found, stats = greedy_tokens(*load_golden(name), answers, limits)
    return found == [answer.greedy for answer in answers], stats.preemptions


def converted_is_right(name: str) -> bool:
    """Return whether the converted directory gives the recorded tokens."""
    answers = golden_answers(name)
    found, _ = greedy_tokens(*_converted(name), answers, SMALL)
    return found == [answer.greedy for answer in answers]


def wanted(answers: list[Golden], turn: int = 0) -> list[Request]:
    """Return a request for each answer; log-probabilities show every bit."""
    about = {"temperature": 0.0, "ignore_eos": True, "logprobs": 3}
    return [
        request(f"r{turn}.{i}", answer.prompt, max_tokens=len(answer.greedy), **about)
        for i, answer in enumerate(answers)
    ]


def engine_of(name: str, limits: EngineConfig, kernels: Kernels, dtype: DType = "float32") -> Engine:
    """Return a new engine on a golden."""
    config, params = load_in(name, dtype)
    limits = fitted(limits, config)
    streamed_or_hosted = limits.streaming is not None or limits.cache.keep_inputs
    compiled = compile_for(config, limits, kernels) if streamed_or_hosted else compiled_step(config, limits, kernels)
    return build_engine(config, limits, dict(params), frozenset(), compiled=compiled)


def offloaded_is_right(name: str, kernels: Kernels = REFERENCE) -> tuple[bool, int]:
    """Return whether contexts that left the device, and of which layer inputs came back, give the recorded tokens; and
    how many tokens' K and V were projected from their inputs."""
    engine = engine_of(name, HOSTED, kernels)
    assert isinstance(engine.offload, Offload)
    engine.offload.tier.planner = _project
    answers = golden_answers(name)
    right = True
    for turn in range(2):
        for one, answer in zip(wanted(answers, turn), answers, strict=True):
            right &= tokens(run(engine, [one])[one.request_id]) == answer.greedy
    return right, engine.offload.stats().projected_tokens


def padding_is_not_read(name: str, kernels: Kernels) -> bool:
    """Return whether all prompts at once get the same tokens and log-probabilities, to the bit, from kernels that leave
    NaN in each row that holds nothing."""
    events = []
    for made in (kernels, with_nan_in_padding(kernels)):
        engine = engine_of(name, SMALL, made)
        events.append(run(engine, wanted(golden_answers(name))))
    return events[0] == events[1]


def _project(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
    """Plan that all blocks of which the host has inputs are projected."""
    del start, free_tokens, num_waiting
    return Split(0, 0.0, blocks if inputs_known else 0)


def streamed_is_right(name: str, kernels: Kernels = REFERENCE) -> tuple[bool, bool]:
    """Return whether a cache in host memory gives the recorded tokens, and the bits of one on the device."""
    answers = golden_answers(name)
    streamed, resident = (run(engine_of(name, limits, kernels), wanted(answers)) for limits in (STREAMED, SMALL))
    right = [tokens(streamed[one.request_id]) for one in wanted(answers)] == [answer.greedy for answer in answers]
    return right, _plain(streamed) == _plain(resident)


def _plain(events: dict[str, list[TokenEvent]]) -> dict[str, list[TokenEvent]]:
    return {name: [replace(event, cached_tokens=None) for event in of_one] for name, of_one in events.items()}


def verified(name: str, dtype: DType, kernels: Kernels) -> list[Scenario]:
    """Return what ``verify-determinism`` finds."""
    return Verifier(engine_of(name, VERIFIED, kernels, dtype), requests=7, seed=1).verify()
