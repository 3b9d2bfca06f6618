"""The embedded demonstration model: it is the default, it is small, it recalls, and serving changes no word of it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from openai import OpenAI

from jaxgen import LLM, SamplingParams
from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.server.app import create_app
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.default_model import DEMO, default_model
from tests.support.golden_runs import logits_of_chunks, make_forward
from tests.support.goldens import Golden
from tests.support.live_server import serve

PROMPTS = (
    "def read_config(path):\n",
    "class Queue:\n    def __init__(self, maxsize=0):\n",
    "import os\nimport sys\n\n",
    "for name in sorted(names):\n    if name.startswith(",
)
MAX_TOKENS = 48
SHORT = SamplingParams(max_tokens=6, temperature=0.0)
LIMITS: dict[str, Any] = {
    "max_model_len": 256,
    "token_budget": 32,
    "max_num_seqs": 4,
    "block_size": 8,
    "num_blocks": 32,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The default model with little room."""
    with LLM(**LIMITS) as llm:
        yield llm


def test_it_is_the_default_and_small() -> None:
    assert default_model() == DEMO
    size = sum(file.stat().st_size for file in DEMO.iterdir())
    assert size < 10 * 2**20
    assert (DEMO / "README.md").is_file()


@pytest.mark.full  # tests/models/test_parity.py has other models, without a server
def test_served_output_is_that_of_a_full_recomputation() -> None:
    """Every served token is the most probable one when the whole text so far is computed anew in one step.

    In float32, where two ways of computing the same logits agree to far less than the gap this asks for.
    """
    config = load_model_config(DEMO, "float32")
    params = load_params(DEMO, config, progress=False)
    whole = EngineConfig(CacheConfig(256, 1), SchedulerConfig(256, 1, 256), seed=0, max_logit_bias=4)
    forward = make_forward(config, whole)
    with LLM(dtype="float32", max_model_len=128, token_budget=16, max_num_seqs=4, block_size=8, num_blocks=18) as llm:
        with serve(create_app(llm.engine)) as url:
            client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            answer = client.completions.create(
                model=llm.engine.model.name,
                prompt=[*PROMPTS],
                max_tokens=MAX_TOKENS,
                temperature=0.0,
                extra_body={"ignore_eos": True},
            )
        assert llm.engine.stats().preemptions > 0
        served = llm.generate([*PROMPTS], SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True))
        assert [choice.text for choice in answer.choices] == [one.text for one in served]
    for prompt, one in zip(PROMPTS, served, strict=True):
        ids = llm.engine.tokenizer.encode(prompt)
        nothing = np.zeros((0, config.vocab_size), np.float32)
        known = Golden(ids, list(one.tokens), np.arange(0, dtype=np.int32), nothing, {})
        logits = logits_of_chunks(forward, config, params, known, whole)[len(ids) - 1 :]
        chosen = logits[np.arange(MAX_TOKENS), one.tokens]
        assert (logits.max(-1) - chosen).max() < 1e-3


def exercise(chance: random.Random, bindings: int) -> tuple[str, str]:
    """Some four-digit values bound to names, and a query of the first: at most 128 tokens apart."""
    names = [f"k_{''.join(chance.choices('abcdefghijklmnopqrstuvwxyz', k=2))}" for _ in range(bindings)]
    values = [str(chance.randint(1000, 9999)) for _ in names]
    lines = [f"{name} = {value}\n" for name, value in zip(names, values, strict=True)]
    return "".join(lines) + f"print({names[0]})  # ", values[0]


def test_it_recalls_what_was_bound_earlier(llm: LLM) -> None:
    chance = random.Random(0)
    asked = [exercise(chance, bindings) for bindings in (1, 2, 3, 5, 8, 10) for _ in range(10)]
    answers = llm.generate([text for text, _ in asked], SHORT)
    right = sum(one.text.startswith(f"{value}\n") for one, (_, value) in zip(answers, asked, strict=True))
    longest = max(len(llm.engine.tokenizer.encode(text)) for text, _ in asked)
    assert 100 < longest < 160, "distances are to reach about 128 tokens"
    assert right / len(asked) >= 0.9


@dataclass
class Exercises:
    """Texts, their answers from an engine that has all in its cache, and blocks of 8 tokens that all of them take."""

    asked: list[tuple[str, str]]
    undisturbed: list[str]
    blocks: int

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.asked]


@pytest.fixture(scope="module")
def exercises(llm: LLM) -> Exercises:
    chance = random.Random(1)
    asked = [exercise(chance, bindings) for bindings in (5, 8, 10) for _ in range(6)]
    blocks = sum(-(-(len(llm.engine.tokenizer.encode(text)) + 6) // 8) for text, _ in asked)
    undisturbed = [one.text for one in llm.generate([text for text, _ in asked], SHORT)]
    return Exercises(asked, undisturbed, blocks)


def test_it_recalls_as_well_from_host_memory(exercises: Exercises) -> None:
    """With fewer blocks than a fifth of what all exercises take, asked a second time: most have left the device."""
    assert exercises.blocks > 5 * LIMITS["num_blocks"]
    with LLM(**LIMITS, kv_offloading_size=0.1, kv_offload_policy="transfer") as llm:
        for _ in range(2):
            answers = [one.text for one in llm.generate(exercises.texts, SHORT)]
            assert answers == exercises.undisturbed
        stats = llm.engine.stats().offload
    assert stats is not None
    assert stats.restored_tokens > exercises.blocks * 8 // 2
    right = sum(text.startswith(f"{value}\n") for text, (_, value) in zip(answers, exercises.asked, strict=True))
    assert right / len(answers) >= 0.9


@pytest.mark.full  # tests/layerwise has small models for all that this does
def test_it_recalls_as_well_with_all_blocks_in_host_memory(exercises: Exercises) -> None:
    """The device has one layer in six."""
    limits = LIMITS | {"num_blocks": exercises.blocks + 10}
    with LLM(**limits, kv_offloading_size=0.01, kv_residency="host") as llm:
        assert [one.text for one in llm.generate(exercises.texts, SHORT)] == exercises.undisturbed
        stats = llm.engine.stats().offload
    assert stats is not None
    assert stats.host_blocks > exercises.blocks * 3 // 4
    assert stats.restored_tokens > exercises.blocks * 8


def test_weights_are_bfloat16() -> None:
    config = load_model_config(DEMO)
    params = load_params(DEMO, config, progress=False)
    assert {p.dtype for p in params.values()} == {jnp.dtype(jnp.bfloat16)}
    assert 2e6 < sum(p.size for p in params.values()) < 4e6
