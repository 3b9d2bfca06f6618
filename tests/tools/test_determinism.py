"""The verifier: it passes on a sound engine, covers what it says, and finds a single bit."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxgen.core.config import EngineConfig, OffloadConfig
from jaxgen.core.kv_dtype import KVDType
from jaxgen.core.model_config import DType
from jaxgen.core.quantization import WeightFormat
from jaxgen.core.step_plan import StepPlan
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.kernels.kernels import Kernels
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.step import StepOutput
from jaxgen.tools.determinism import ANSWER_TOKENS, Scenario, Verifier
from tests.support.engines import LLAMA, engine_config, make_engine
from tests.support.fake_runner import FakeRunner, FakeTokens, ask, loop_of
from tests.support.native import native as library
from tests.support.quantized import FP4, INT8, ORDERED, quantized

CONFIG = engine_config(token_budget=16, max_num_seqs=8, max_model_len=96, block_size=8, num_blocks=24)


def verify(config: EngineConfig = CONFIG, requests: int = 7, **engine: Any) -> dict[str, Scenario]:
    """With each way of sampling once."""
    verifier = Verifier(make_engine(config=config, **engine), requests=requests, seed=1)
    return {scenario.name: scenario for scenario in verifier.verify()}


def kernels_named(name: str) -> Kernels:
    if name == "XLA":
        return REFERENCE
    chosen = native(library())
    return chosen if name == "native" else replace(chosen, packed=None)


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("dtype", "kernels"),
    [
        ("float32", "XLA"),
        # Every kernel and every type is above, or below with a cache of codes.
        pytest.param("bfloat16", "native", marks=pytest.mark.full),
        pytest.param("bfloat16", "native attention, XLA's products", marks=pytest.mark.full),
        pytest.param("bfloat16", "XLA", marks=pytest.mark.full),
        pytest.param("float32", "native", marks=pytest.mark.full),
    ],
)
def test_a_request_keeps_its_bits_in_every_circumstance(dtype: DType, kernels: str) -> None:
    chosen = kernels_named(kernels)
    scenarios = verify(model=replace(LLAMA, dtype=dtype), kernels=chosen)
    for scenario in scenarios.values():
        assert scenario.mismatches == [], scenario.name
        assert scenario.covered, scenario
    assert len(scenarios) == 8
    assert min(scenario.compared for scenario in scenarios.values()) >= 6


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("dtype", "kernels", "kv_dtype"),
    [
        ("bfloat16", "native", "int8"),
        # What reads codes is proven by itself.
        pytest.param("float32", "XLA", "fp8", marks=pytest.mark.full),
    ],
)
def test_codes_and_host_memory_keep_the_bits_too(dtype: DType, kernels: str, kv_dtype: KVDType) -> None:
    model = replace(LLAMA, dtype=dtype, kv_dtype=kv_dtype)
    config = replace(CONFIG, offload=OffloadConfig(500, "transfer"))
    scenarios = verify(config, model=model, kernels=kernels_named(kernels))
    assert [scenario for scenario in scenarios.values() if not scenario.passed] == []
    assert scenarios["restored from host memory"].happened["restored tokens"] > 50
    assert len(scenarios) == 9


@pytest.mark.full  # their products know nothing of rows; tests/models has requests alone and among others
@pytest.mark.parametrize(
    ("dtype", "about"),
    [
        ("bfloat16", FP4),  # integers of 8 bits in small groups
        ("float32", ORDERED),
        ("bfloat16", INT8),
    ],
    ids=str,
)
def test_weights_of_few_bits_keep_the_bits_too(dtype: DType, about: WeightFormat) -> None:
    scenarios = verify(model=quantized(replace(LLAMA, dtype=dtype), about), kernels=native(library()))
    assert [scenario for scenario in scenarios.values() if not scenario.passed] == []
    assert len(scenarios) == 8


def leave_out(monkeypatch: pytest.MonkeyPatch, *scenarios: str) -> None:
    for name in scenarios:
        monkeypatch.setattr(Verifier, name, lambda self: Scenario("left out"))


def test_one_bit_of_a_log_probability_or_a_hidden_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ModelRunner.run

    def off_by_a_bit(self: ModelRunner, plan: StepPlan, **options: Any) -> StepOutput:
        output = honest(self, plan, **options)
        if len(plan.chunks) < 3:
            return output
        top = output.logprobs.top_values
        top = top.at[2, 7].set(jnp.nextafter(top[2, 7], jnp.float32(1)))
        hidden = output.hidden.at[:, 7].set(jnp.nextafter(output.hidden[:, 7], jnp.float32(1)))
        return replace(output, logprobs=replace(output.logprobs, top_values=top), hidden=hidden)

    monkeypatch.setattr(ModelRunner, "run", off_by_a_bit)
    leave_out(monkeypatch, "cached", "filled_at_random", "among_strangers", "continued", "as_prompt")
    scenarios = verify()
    assert scenarios["alone again"].passed
    assert not scenarios["all at once"].passed
    mismatch = scenarios["all at once"].mismatches[0]
    assert 0 <= mismatch.index < ANSWER_TOKENS
    assert mismatch.expected != mismatch.actual
    assert scenarios["embedded, all at once"].mismatches[0].index == 7


def test_what_did_not_happen_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks hold two of the longest requests."""
    leave_out(monkeypatch, "again", "filled_at_random", "among_strangers", "continued", "as_prompt", "embedded")
    scenarios = verify(replace(CONFIG, scheduler=replace(CONFIG.scheduler, prefix_caching=False)), requests=2)
    assert scenarios["with a cached prefix"].happened == {"cached tokens": 0}
    assert scenarios["all at once"].happened["preemptions"] == 0
    for name in ("with a cached prefix", "all at once"):
        assert not scenarios[name].mismatches
        assert not scenarios[name].passed


@dataclass
class TwoPrograms(FakeRunner):
    """A runner with a narrow program, whose tokens are larger by ``off``."""

    off: int = 0
    has_narrow: bool = True

    def uses_narrow(self, plan: StepPlan) -> bool:
        return self.has_narrow and plan.decodes_only

    def disable_narrow(self) -> None:
        self.has_narrow = False

    def run(self, plan: StepPlan, *, narrow: bool | None = None) -> Any:
        off = self.off if self.uses_narrow(plan) else 0
        return SimpleNamespace(tokens=FakeTokens(self, [chunk.end + off for chunk in plan.chunks]))

    rehearse = run


@pytest.mark.parametrize("off", [0, 1])
def test_decodes_of_a_narrow_program_are_computed_by_the_wide_one_too(
    off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = loop_of(TwoPrograms(off=off))
    monkeypatch.setattr("jaxgen.tools.determinism._make_requests", lambda *_: [ask("a", 3, max_tokens=4)])
    verifier = Verifier(engine, requests=1, seed=1)
    others = (
        "again",
        "cached",
        "together",
        "filled_at_random",
        "among_strangers",
        "continued",
        "as_prompt",
        "embedded",
    )
    for name in others:
        monkeypatch.setattr(verifier, name, lambda: Scenario("left out"))
    *_, last = verifier.verify()
    assert (last.name, last.happened["narrow steps before"]) == ("in wide steps alone", 3)
    assert (last.covered, len(last.mismatches)) == (True, off)
