"""The step of separate programs, which GPUs run: the same answers as the step that is one program."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.runner import step
from jaxgen.runner.programs import CompiledStep, compile_step
from tests.engine.test_grammars import EOS, MODEL, run
from tests.sampling.test_needs import NAMES, OTHERS
from tests.support.engines import compiled_step, engine_config, params_of, request

CONFIG = engine_config(token_budget=16, max_num_seqs=4)
PIECE = 3
"""Rows of a piece of the step that is one program: of 4 rows the second piece has one."""
ONE_PROGRAM = replace(REFERENCE_GPU, separate_sampling=False)
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    **{name: {"temperature": 0.9, "seed": seed, name: OTHERS[name]} for seed, name in enumerate(NAMES)},
    "greedy penalties": {"temperature": 0.0, **{name: OTHERS[name] for name in NAMES if "penalty" in name}},
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    "prompt_logprobs": {"temperature": 1.0, "seed": 5, "prompt_logprobs": 2},
}
"""Each field of which the device learns, in a request of its own."""


def requests(names: list[str]) -> list[Any]:
    made = []
    for index, name in enumerate(names):
        prompt = np.random.default_rng(index).integers(3, MODEL.vocab_size, size=5 + 6 * (index % 11)).tolist()
        made.append(request(name, prompt, **{"max_tokens": 8, **ASKED[name]}))
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
