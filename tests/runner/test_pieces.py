"""Rows are sampled a few at a time: as many as there are, and each as it would be alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from jaxgen.kernels.choice import REFERENCE
from jaxgen.runner import step
from jaxgen.runner.programs import step_program
from jaxgen.runner.step import in_pieces
from tests.support.engines import LLAMA, engine_config


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


def test_nothing_but_the_heads_product_is_of_all_rows() -> None:
    """Bias, scale and soft cap of logits, and whatever samples, are in loops over the rows that are there."""
    head = replace(LLAMA.head, bias=True, scale=0.5, soft_cap=30.0)
    config = engine_config()
    program, shapes = step_program(replace(LLAMA, head=head), config, REFERENCE, width=16)
    made = outside_loops(jax.make_jaxpr(program)(*shapes))
    assert [name for name, shape in made if shape == (config.scheduler.max_num_seqs, LLAMA.vocab_size)] == [
        "dot_general"
    ]


def outside_loops(program: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The operations that run in every step, with the shapes of the floats that they make."""
    for equation in program.eqns:
        inner = [part for part in equation.params.values() if isinstance(part, (Jaxpr, ClosedJaxpr))]
        if equation.primitive.name in ("while", "cond", "scan"):
            continue
        if inner:
            yield from (found for part in inner for found in outside_loops(getattr(part, "jaxpr", part)))
        else:
            yield from (
                (equation.primitive.name, one.aval.shape) for one in equation.outvars if one.aval.dtype == jnp.float32
            )
