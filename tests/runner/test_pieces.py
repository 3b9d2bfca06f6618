"""Rows are sampled a few at a time: as many as there are, and each as it would be alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.step_plan import StepPlan
from jaxgen.kernels.choice import REFERENCE
from jaxgen.models.model import Model
from jaxgen.runner import step
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.packer import Packer, unpack
from jaxgen.runner.programs import step_program
from jaxgen.runner.row_state import init_rows
from jaxgen.runner.step import in_pieces
from jaxgen.runner.timing import dummy_sequence
from jaxgen.scheduling.scheduler import Scheduler
from tests.support.engines import LLAMA, compiled_step, engine_config, params_of


@pytest.mark.parametrize(("rows", "at_once"), [(1, 1), (5, 1), (5, 2), (5, 3), (5, 8), (8, 4)])
def test_every_row_that_is_there_is_computed_once_or_more(
    monkeypatch: pytest.MonkeyPatch, rows: int, at_once: int
) -> None:
    monkeypatch.setattr(step, "PIECE_LOGITS", 100 * at_once)
    values = jnp.arange(1, rows + 1)

    @jax.jit
    def squares(num_rows: Any) -> Any:
        empty = {"squares": jnp.zeros(rows, jnp.int32)}
        return in_pieces(lambda piece: {"squares": piece(values) ** 2}, empty, num_rows, vocab_size=100)

    for num_rows in range(rows + 1):
        found = np.asarray(squares(num_rows)["squares"])
        assert found[:num_rows].tolist() == [n * n for n in range(1, num_rows + 1)]
        computed = -(-num_rows // at_once) * at_once
        assert not found[computed:].any(), "rows of padding cost nothing"


def test_a_row_may_have_more_logits_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "PIECE_LOGITS", 10)
    found = in_pieces(lambda piece: piece(jnp.arange(3)), jnp.zeros(3, jnp.int32), jnp.int32(3), vocab_size=100)
    assert found.tolist() == [0, 1, 2]


def test_the_head_multiplies_the_rows_that_sample_alone() -> None:
    scheduler = Scheduler(engine_config().scheduler, engine_config().cache)
    for row, length in enumerate((3, 5, 40)):
        scheduler.add(dummy_sequence(row, (3,) * length, SamplingParams(max_tokens=2, ignore_eos=True)))
    model, rows, found = MagicMock(Model), init_rows(engine_config(), LLAMA.vocab_size), []
    model.head_products.side_effect = lambda hidden, _: hidden
    for _ in range(3):
        plan = scheduler.schedule()
        batch, _ = unpack(jnp.asarray(Packer(engine_config()).pack(plan)), rows, 16, engine_config().cache)
        step.sample_products(model, jnp.zeros((16, 1)), batch)
        found.append((len(plan.chunks), int(model.head_products.call_args[0][1])))
        scheduler.complete(plan, [5] * plan.num_samples)
    assert found == [(3, 2), (3, 2), (1, 0)]


def test_nothing_but_the_heads_product_is_of_all_rows() -> None:
    """Bias, scale and soft cap of logits, and whatever samples, are in loops over the rows that are there."""
    head = replace(LLAMA.head, bias=True, scale=0.5, soft_cap=30.0)
    config = engine_config()
    program = step_program(replace(LLAMA, head=head), config, REFERENCE, width=16)
    made = outside_loops(jax.make_jaxpr(program.function)(*program.shapes))
    assert [name for name, shape in made if shape == (config.scheduler.max_num_seqs, LLAMA.vocab_size)] == [
        "dot_general"
    ]


def test_logits_of_prompts_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporaries do not grow with the rows of the program: Linux would take large ones back after each step."""
    monkeypatch.setattr(step, "PIECE_LOGITS", 2 * LLAMA.vocab_size)
    monkeypatch.setattr(step, "PROMPT_LOGITS", 8 * LLAMA.vocab_size)
    config = engine_config(token_budget=32, max_num_seqs=32)
    program = step_program(LLAMA, config, REFERENCE, width=32)
    made = operations(jax.make_jaxpr(program.function)(*program.shapes))
    of_vocabulary = {(name, shape[0]) for name, shape in made if shape[1:] == (LLAMA.vocab_size,)}
    assert {rows for name, rows in of_vocabulary if name == "dot_general"} == {32, 8}
    assert {rows for name, rows in of_vocabulary if name != "dot_general"} == {2, 8}


@pytest.mark.parametrize("narrow", [False, pytest.param(True, marks=pytest.mark.full)])
def test_products_of_each_step_take_the_memory_of_those_before(narrow: bool) -> None:
    config = replace(engine_config(), narrow_width=4 if narrow else None)
    runner = ModelRunner(LLAMA, config, params_of(LLAMA), compiled_step(LLAMA, config))
    runner.run(StepPlan(()), narrow=narrow)
    before = places_of(runner)
    for _ in range(3):
        runner.run(StepPlan(()), narrow=narrow)
    runner.wait()
    assert places_of(runner) == before


def places_of(runner: ModelRunner) -> list[int]:
    return [buffer.unsafe_buffer_pointer() for buffer in jax.tree.leaves(runner._products_buffers)]


def outside_loops(program: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The operations that run in every step, with the shapes of the floats that they make."""
    return operations(program, without=("while", "cond", "scan"))


def operations(program: Any, without: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The operations of a program, but those ``without``, with the shapes of the floats that they make."""
    for equation in getattr(program, "jaxpr", program).eqns:
        if equation.primitive.name in without:
            continue
        inner = [part for part in jax.tree.leaves(equation.params) if isinstance(part, (Jaxpr, ClosedJaxpr))]
        yield from (found for part in inner for found in operations(part, without))
        if not inner:
            yield from (
                (equation.primitive.name, one.aval.shape) for one in equation.outvars if one.aval.dtype == jnp.float32
            )
