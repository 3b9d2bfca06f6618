"""The step of separate programs, which GPUs run: the same answers as the step that is one program."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxgen.core.sampling_params import Grammar, Sampling, SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.runner import step
from jaxgen.runner.programs import CompiledStep, compile_step
from tests.engine.test_grammars import EOS, MODEL, run
from tests.support.engines import compiled_step, engine_config, params_of, request

CONFIG = engine_config(token_budget=16, max_num_seqs=4)
PIECE = 3
"""Rows of a piece of the step that is one program: of 4 rows the second piece has one."""
ONE_PROGRAM = replace(REFERENCE_GPU, separate_sampling=False)
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0, "seed": 1},
    "nucleus": {"temperature": 0.8, "top_p": 0.7, "min_p": 0.01, "seed": 2},
    "top_k": {"temperature": 0.9, "top_k": 5, "seed": 3},
    "penalties": {"temperature": 0.0, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    "bias": {"temperature": 0.0, "logit_bias": {5: 3.0, 9: -100.0}},
    "min_tokens": {"temperature": 0.0, "min_tokens": 5, "stop_token_ids": (7,)},
    "allowed": {"temperature": 1.0, "seed": 4, "allowed_token_ids": (3, 5, 8, 13, 21)},
    "grammar": {"temperature": 1.0, "seed": 6, "grammar": Grammar("start: /[0-9]{4}-[0-9]{2}/")},
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    "prompt_logprobs": {"temperature": 1.0, "seed": 5, "prompt_logprobs": 2},
}


def requests(names: list[str]) -> list[Any]:
    made = []
    for index, name in enumerate(names):
        prompt = np.random.default_rng(index).integers(3, MODEL.vocab_size, size=5 + 6 * index).tolist()
        made.append(request(name, prompt, max_tokens=8, **ASKED[name]))
    return made


def engine_of(compiled: CompiledStep) -> Engine:
    return build_engine(MODEL, CONFIG, params_of(MODEL), frozenset({EOS}), compiled=compiled)


@pytest.mark.full  # compiles the programs of two steps
def test_all_kinds_together_and_alone_have_the_answers_of_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """That samples rows in pieces; how many are in one is test_pieces'."""
    together = run(engine_of(compiled_step(MODEL, CONFIG, REFERENCE_GPU)), requests(list(ASKED)))
    monkeypatch.setattr(step, "PIECE_LOGITS", PIECE * MODEL.vocab_size)
    assert run(engine_of(compile_step(MODEL, CONFIG, ONE_PROGRAM)), requests(list(ASKED))) == together
    for name in ASKED:
        index = list(ASKED).index(name)
        assert (
            run(engine_of(compiled_step(MODEL, CONFIG, REFERENCE_GPU)), [requests(list(ASKED))[index]])[name]
            == together[name]
        )


@pytest.mark.parametrize("name", ASKED)
def test_a_request_asks_for_no_more_work_than_it_needs(name: str) -> None:
    expected = {"greedy": Sampling.GREEDY, "logprobs": Sampling.GREEDY} | dict.fromkeys(
        ("drawn", "nucleus", "prompt_logprobs"), Sampling.DRAWN
    )
    assert SamplingParams(**{"max_tokens": 8, **ASKED[name]}).sampling == expected.get(name, Sampling.ADJUSTED)
