"""Embeddings by the engine: the hidden states that transformers has, and the same bits through any schedule."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import DType
from jaxgen.core.model_info import Pooling
from jaxgen.core.request import FinishReason, Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.runners import compile_for
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.runner.interface import StepArrays
from tests.support.engines import LLAMA, embed, embeddings, engine_config, make_engine, request, run, tokens
from tests.support.golden_runs import SMALL, fitted, load_golden
from tests.support.goldens import OF_FAMILIES, golden_answers
from tests.support.native import native as library

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, LLAMA.vocab_size, size=n).tolist() for n in (1, 5, 16, 17, 33, 70, 120)]
TOLERANCE = 3e-5
"""Largest difference of a component, relative to the largest."""


def embeds(pooling: Pooling = Pooling.MEAN) -> list[Request]:
    return [embed(f"e{i}", prompt, pooling) for i, prompt in enumerate(PROMPTS)]


def each_alone(engine: Engine, wanted: Iterable[Request]) -> dict[str, tuple[float, ...]]:
    found: dict[str, tuple[float, ...]] = {}
    for one in wanted:
        found |= embeddings(run(engine, [one]))
    return found


def load() -> list[Request]:
    """Completions of the same prompts."""
    return [request(f"c{i}", prompt, max_tokens=12, ignore_eos=True) for i, prompt in enumerate(PROMPTS)]


# --- what they are


QUICK = [("opt_350m", "XLA"), ("mistral_window", "native")]
LONG = [(name, ("XLA", "native")[number % 2]) for number, name in enumerate(OF_FAMILIES)]


@pytest.mark.parametrize(("name", "kernels"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.full) for one in LONG)])
def test_hidden_states_are_those_of_transformers(name: str, kernels: str) -> None:
    """All prompts and ways of pooling at once, in chunks."""
    config, params = load_golden(name)
    chosen = REFERENCE if kernels == "XLA" else native(library())
    limits = fitted(SMALL, config)
    engine = build_engine(config, limits, params, frozenset(), compiled=compile_for(config, limits, chosen))
    answers = golden_answers(name)
    wanted = [embed(f"{pooling} {i}", a.prompt, pooling) for i, a in enumerate(answers) for pooling in Pooling]
    found = embeddings(run(engine, wanted))
    worst = 0.0
    for i, answer in enumerate(answers):
        for pooling, expected in answer.pooled.items():
            assert expected.shape == (config.output_size,)
            worst = max(worst, np.abs(np.array(found[f"{pooling} {i}"]) - expected).max() / np.abs(expected).max())
    print(f"{name}, {kernels}: relative error of embeddings {worst:.1e}")  # noqa: T201
    assert worst < TOLERANCE


# --- the same bits


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("config", "kernels"),
    [
        pytest.param(engine_config(), "XLA", id="mixed batches, chunked prompts"),
        pytest.param(engine_config(), "native", id="native kernels"),
        pytest.param(
            engine_config(token_budget=4, max_num_seqs=3, block_size=1, num_blocks=256), "XLA", id="tiny steps"
        ),
        pytest.param(
            engine_config(block_size=48, num_blocks=9, token_budget=64, max_num_seqs=8), "XLA", id="odd blocks"
        ),
    ],
)
def test_any_schedule_gives_the_same_bits(config: EngineConfig, kernels: str) -> None:
    """Alone, together, and among completions; in any order."""
    engine = make_engine(config=config, kernels=REFERENCE if kernels == "XLA" else native(library()))
    alone = each_alone(engine, embeds())
    assert len({values[0] for values in alone.values()}) == len(PROMPTS)
    assert embeddings(run(engine, reversed(embeds()))) == alone
    mixed = [one for pair in zip(load(), embeds(), strict=True) for one in pair]
    assert embeddings(run(engine, mixed)) == alone
    stats = engine.stats()
    assert (stats.blocks_free, stats.compilations_after_ready) == (stats.blocks_total, 0)


@pytest.mark.parametrize(
    ("dtype", "pooling"),
    [
        *(("float32", pooling) for pooling in Pooling),
        *(pytest.param("bfloat16", pooling, marks=pytest.mark.full) for pooling in Pooling),
    ],
)
def test_every_way_of_pooling(dtype: DType, pooling: Pooling) -> None:
    """Full: bfloat16, which is a program more."""
    engine = make_engine(replace(LLAMA, dtype=dtype))
    alone = each_alone(engine, embeds(pooling))
    assert embeddings(run(engine, [*load(), *embeds(pooling)])) == alone


@pytest.mark.parametrize("pooling", Pooling)
def test_a_prompt_preempted_half_way_is_pooled_anew(pooling: Pooling) -> None:
    """An older completion takes its blocks after some of its tokens were pooled."""
    config = engine_config(token_budget=4, max_num_seqs=2, block_size=4, num_blocks=18, max_model_len=64)
    engine = make_engine(config=config)
    wanted = embed("e", PROMPTS[6][:60], pooling)
    alone = each_alone(engine, [wanted])
    engine.add(request("older", PROMPTS[1], max_tokens=50, ignore_eos=True))
    engine.step()
    engine.step()
    engine.add(wanted)
    engine.step()
    sequence = engine.scheduler._live["e"]
    computed_before = 0
    while not sequence.standing.num_preemptions:
        computed_before = sequence.num_computed
        engine.step()
    assert 8 < computed_before < 60
    assert embeddings(run(engine, [])) == alone


def test_nothing_of_it_comes_from_the_cache_and_others_find_what_it_left() -> None:
    engine = make_engine()
    wanted = embed("e", PROMPTS[6])
    alone = each_alone(engine, [wanted])
    completion = request("c", PROMPTS[6], max_tokens=5, ignore_eos=True, temperature=0.0)
    found = run(engine, [completion])["c"]
    assert found[0].cached_tokens == 119
    assert embeddings(run(engine, [wanted])) == alone
    assert tokens(run(make_engine(), [completion])["c"]) == tokens(found)


# --- requests


def test_log_probabilities_of_the_prompt_may_be_asked_for_too() -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=2)
    both = Request("both", tuple(PROMPTS[5]), params, pooling=Pooling.MEAN)
    (event,) = run(make_engine(), [both])["both"]
    (scored,) = run(make_engine(), [replace(both, pooling=None)])["both"]
    assert event.prompt_logprobs == scored.prompt_logprobs
    assert event.embedding == each_alone(make_engine(), [embed("e", PROMPTS[5])])["e"]
    assert scored.embedding is None


def test_who_pools_generates_nothing() -> None:
    with pytest.raises(ValueError, match="max_tokens must be 0 with pooling"):
        Request("e", (5,), SamplingParams(max_tokens=1), pooling=Pooling.MEAN)


def test_nothing_is_kept_of_those_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted half-way, or failed: the next of the same name begins anew."""
    engine = make_engine()
    wanted = embed("e", PROMPTS[6])
    alone = each_alone(engine, [wanted])
    engine.add(wanted)
    for _ in range(4):
        engine.step()
    assert engine.abort("e")
    assert embeddings(run(engine, [wanted])) == alone
    engine.add(wanted)
    for _ in range(4):
        engine.step()

    run_any = engine.runner.run

    def fail(plan: StepPlan) -> StepArrays:
        if plan.chunks:  # else it is the step that shows that the device has not been lost
            raise FloatingPointError("injected")
        return run_any(plan)

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run", fail)
        (event,) = engine.step()
    assert (event.finish_reason, event.embedding) == (FinishReason.ERROR, None)
    assert engine.output._pools == {}
    assert embeddings(run(engine, [wanted])) == alone
