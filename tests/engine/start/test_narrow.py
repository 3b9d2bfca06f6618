"""The narrow program: used for steps of decodes only, and only where it proves to give the same bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.engine.engine import Engine
from jaxgen.engine.start import narrow
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.narrow import compare
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.programs import CompiledStep
from jaxgen.scheduling.scheduler import Scheduler
from tests.support.engines import (
    LLAMA,
    compiled_step,
    embed,
    embeddings,
    engine_config,
    make_engine,
    params_of,
    request,
    run,
)

CONFIG = replace(engine_config(token_budget=32, max_num_seqs=8), narrow_width=8)
PROMPTS = [np.random.default_rng(n).integers(3, LLAMA.vocab_size, size=n).tolist() for n in (1, 7, 20, 33, 50)]


def count_runs(compiled: CompiledStep) -> tuple[CompiledStep, dict[str, int]]:
    """The programs, and how often each was run."""
    runs = {"run": 0, "narrow": 0}

    def counted(name: str) -> Any:
        def step(*args: Any) -> Any:
            runs[name] += 1
            return getattr(compiled, name)(*args)

        return step

    return replace(compiled, run=counted("run"), narrow=counted("narrow")), runs


def engine_of(compiled: CompiledStep) -> Engine:
    return build_engine(LLAMA, CONFIG, params_of(LLAMA), frozenset(), compiled=compiled)


@pytest.mark.shipped
def test_both_programs_give_the_same_bits_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "CLEARLY_FASTER", np.inf)
    device = ModelRunner(LLAMA, CONFIG, params_of(LLAMA), compiled_step(LLAMA, CONFIG))
    assert compare(device, LLAMA, CONFIG).equal


def test_decodes_run_by_the_narrow_program_and_answers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "CLEARLY_FASTER", np.inf)
    compiled, runs = count_runs(compiled_step(LLAMA, CONFIG))
    engine = engine_of(compiled)
    runs.update(run=0, narrow=0)
    todo = [
        request(f"r{i}", prompt, max_tokens=20, ignore_eos=True, seed=i, logprobs=3) for i, prompt in enumerate(PROMPTS)
    ]
    events = run(engine, todo)
    assert runs["narrow"] > 10
    assert runs["run"] >= 4
    assert engine.stats().compilations_after_ready == 0
    assert events == run(make_engine(config=replace(CONFIG, narrow_width=None)), todo)


def test_more_decodes_than_the_narrow_program_takes_run_by_the_wide_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "CLEARLY_FASTER", np.inf)
    few = replace(CONFIG, narrow_width=2)
    compiled, runs = count_runs(compiled_step(LLAMA, few))
    engine = build_engine(LLAMA, few, params_of(LLAMA), frozenset(), compiled=compiled)
    runs.update(run=0, narrow=0)
    todo = [request(f"r{i}", prompt, max_tokens=4 + 4 * i, seed=i, ignore_eos=True) for i, prompt in enumerate(PROMPTS)]
    events = run(engine, todo)
    assert 4 < runs["narrow"] < 12
    assert runs["run"] > 8
    assert events == run(make_engine(config=replace(CONFIG, narrow_width=None)), todo)


def test_prompts_of_a_token_are_embedded_by_the_narrow_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is the last token that a prompt has left."""
    monkeypatch.setattr(narrow, "CLEARLY_FASTER", np.inf)
    compiled, runs = count_runs(compiled_step(LLAMA, CONFIG))
    engine, wide = engine_of(compiled), make_engine(config=replace(CONFIG, narrow_width=None))
    runs.update(run=0, narrow=0)
    for one in (embed("short", PROMPTS[0]), embed("left over", PROMPTS[3])):
        assert embeddings(run(engine, [one])) == embeddings(run(wide, [one]))
    assert runs == {"run": 1, "narrow": 2}


def _next(values: Any) -> Any:
    return np.nextafter(np.asarray(values), np.float32(1))


@pytest.mark.parametrize("wrong", ["logprobs", "hidden"])
def test_a_program_of_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setattr(narrow, "CLEARLY_FASTER", np.inf)
    compiled, runs = count_runs(compiled_step(LLAMA, CONFIG))
    honest: Any = compiled.narrow

    def off_by_a_bit(*args: Any) -> Any:
        *state, output = honest(*args)
        if wrong == "hidden":
            return *state, replace(output, hidden=_next(output.hidden))
        return *state, replace(output, logprobs=replace(output.logprobs, chosen=_next(output.logprobs.chosen)))

    engine = engine_of(replace(compiled, narrow=off_by_a_bit))
    runs.update(run=0, narrow=0)
    run(engine, [request("r", PROMPTS[1], max_tokens=5)])
    assert runs["narrow"] == 0
    assert runs["run"] > 0


def test_a_program_that_is_not_clearly_faster_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "CLEARLY_FASTER", 0.0)
    compiled, runs = count_runs(compiled_step(LLAMA, CONFIG))
    engine = engine_of(compiled)
    runs.update(run=0, narrow=0)
    run(engine, [request("r", PROMPTS[1], max_tokens=5)])
    assert runs["narrow"] == 0


@given(st.data(), st.sampled_from((1, 16, 64)), st.sampled_from((1, 8, 16, 64, 256)))
def test_what_is_compared_fits_every_context(data: st.DataObject, block: int, rows: int) -> None:
    longest = data.draw(st.integers(2, 4 * block + 2))
    need = -(-longest // block)
    cache = CacheConfig(block, data.draw(st.sampled_from((need, max(need, rows * need // 2), rows * need))))
    config = EngineConfig(cache, SchedulerConfig(2 * rows, rows, longest), seed=0, max_logit_bias=8, narrow_width=rows)
    scheduler = Scheduler(config.scheduler, config.cache)
    for sequence in narrow._sequences(LLAMA, config):
        scheduler.add(sequence)  # refuses what is too long
    assert scheduler.num_waiting == rows
