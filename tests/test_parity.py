"""The engine against transformers, on recorded answers: logits of single steps and greedy tokens through any schedule.

scripts/make_goldens.py wrote the checkpoints and the answers with transformers in float32.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from jaxgen.config import CacheConfig, DType, EngineConfig, ModelConfig, SchedulerConfig
from jaxgen.engine import Engine
from jaxgen.kv_cache import init_cache
from jaxgen.models import Params, bind, graph_of
from jaxgen.scheduler import Scheduler
from jaxgen.sequence import Sequence
from jaxgen.step_batch import Packer, StepBatch
from tests.engines import request, run, tokens
from tests.goldens import GOLDENS, NAMES, Golden, golden_answers
from weights import convert
from weights.load import load_model_config, load_params

LOGIT_TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit of the answer."""

SMALL = EngineConfig(CacheConfig(8, 48), SchedulerConfig(16, 4, 128), seed=0, max_logit_bias=4)
"""Budgets and blocks that cut every long prompt; 48 blocks hold three of the longest sequences."""
TIGHT = EngineConfig(CacheConfig(8, 16), SchedulerConfig(16, 8, 128), seed=0, max_logit_bias=4)
"""Blocks for one sequence of full length: the others are preempted."""


@cache
def loaded(name: str) -> tuple[ModelConfig, Params]:
    config = load_model_config(GOLDENS / name, "float32")
    return config, load_params(GOLDENS / name, config, progress=False)


def logits_of_chunks(name: str, answer: Golden, config: EngineConfig) -> np.ndarray:
    """Logits [n, V] of the prompt and the greedy answer but its last token, computed in chunks of the budget."""
    model_config, params = loaded(name)
    graph = graph_of(model_config)

    @jax.jit
    def forward(params: Params, cache, batch: StepBatch):  # type: ignore[no-untyped-def]
        model = bind(graph, params)
        hidden, cache = model(batch, cache)
        return model.logits(hidden), cache

    known = (*answer.prompt, *answer.greedy[:-1])
    scheduler = Scheduler(config.scheduler, config.cache)
    sequence = Sequence(request("a", known, max_tokens=1), eos_token_ids=frozenset(), arrival=0, seed=0)
    scheduler.add(sequence)
    packer, cache = Packer(config, model_config.vocab_size), init_cache(model_config, config.cache)
    pieces = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        logits, cache = forward(params, cache, packer.pack(plan))
        pieces.append(np.asarray(logits)[: plan.num_tokens])
        scheduler.complete(plan, [0] * plan.num_samples)
    return np.concatenate(pieces)


@pytest.mark.parametrize("name", NAMES)
def test_logits_agree(name: str) -> None:
    for answer in golden_answers(name):
        got = logits_of_chunks(name, answer, SMALL)
        error = np.abs(got - answer.logits).max() / np.abs(answer.logits).max()
        print(f"{name}, prompt of {len(answer.prompt)}: relative error of logits {error:.1e}")  # noqa: T201
        assert error < LOGIT_TOLERANCE


def greedy_tokens(engine: Engine, answers: Iterable[Golden]) -> list[list[int]]:
    todo = [
        request(f"r{i}", answer.prompt, max_tokens=len(answer.greedy), temperature=0.0, ignore_eos=True)
        for i, answer in enumerate(answers)
    ]
    events = run(engine, todo)
    return [tokens(events[one.request_id]) for one in todo]


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_agree(name: str) -> None:
    """All prompts at once, chunked and mixed."""
    model_config, params = loaded(name)
    answers = golden_answers(name)
    engine = Engine(model_config, SMALL, params, frozenset())
    assert greedy_tokens(engine, answers) == [answer.greedy for answer in answers]


@pytest.mark.parametrize("name", ["llama", "mistral_window", "opt_350m"])
def test_greedy_tokens_agree_after_preemption(name: str) -> None:
    model_config, params = loaded(name)
    answers = golden_answers(name) * 2
    engine = Engine(model_config, TIGHT, params, frozenset())
    assert greedy_tokens(engine, answers) == [answer.greedy for answer in answers]
    assert engine.stats().preemptions > 0


@pytest.mark.parametrize("name", ["llama", "mistral_window", "opt_350m"])
def test_converted_directories_give_the_same_tokens(name: str, tmp_path: Path) -> None:
    convert.main([str(GOLDENS / name), str(tmp_path / "converted"), "--dtype", "float32"])
    config = load_model_config(tmp_path / "converted", "auto")
    params = load_params(tmp_path / "converted", config, progress=False)
    engine = Engine(config, SMALL, params, frozenset())
    answers = golden_answers(name)
    assert greedy_tokens(engine, answers) == [answer.greedy for answer in answers]


TRANSFORMERS_ERROR = {
    ("llama", "bfloat16"): 0.085,
    ("llama", "float16"): 0.0077,
    ("opt_350m", "bfloat16"): 0.074,
    ("opt_350m", "float16"): 0.0080,
}
"""Mean error of log-probabilities of transformers itself in that dtype, on the longest prompt, against its float32."""


@pytest.mark.parametrize(("name", "dtype"), TRANSFORMERS_ERROR)
def test_narrow_dtypes_are_as_accurate_as_in_transformers(name: str, dtype: DType) -> None:
    config = load_model_config(GOLDENS / name, dtype)
    params = load_params(GOLDENS / name, config, progress=False)
    assert {p.dtype for p in params.values()} == {jnp.dtype(dtype)}
    answer = max(golden_answers(name), key=lambda answer: len(answer.prompt))
    one = request("a", answer.prompt, max_tokens=0, prompt_logprobs=0)
    (event,) = run(Engine(config, SMALL, params, frozenset()), [one])["a"]
    assert event.prompt_logprobs is not None
    got = np.array([entry.logprob for entry in event.prompt_logprobs if entry])
    want = log_softmax(answer.logits[: len(got)].astype(np.float64), axis=-1)[np.arange(len(got)), answer.prompt[1:]]
    assert np.abs(got - want).mean() < 1.3 * TRANSFORMERS_ERROR[name, dtype]
