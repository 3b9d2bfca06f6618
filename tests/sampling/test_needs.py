"""A step's program has every part of the rule that its rows need."""

from dataclasses import asdict, fields, replace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import WORK_OF, Grammar, Sampling, SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.runner.row_state import RowLoader
from jaxgen.sampling.row_params import Needs, RowParams
from jaxgen.text.constraint import Constraint
from tests.support.engines import engine_config

VOCAB = 64
OTHERS: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {5: 1.0},
    "seed": 3,
    "min_tokens": 2,
    "grammar": Grammar("start: /a/"),
    "allowed_token_ids": (1, 2),
    "bad_words": ("a",),
    "stop_token_ids": (7,),
    "ignore_eos": True,
    "max_tokens": 9,
}
"""A value of each field of which the device may learn, other than that of a greedy request."""
OF_TEXT = {"stop", "logprobs", "prompt_logprobs", "include_stop_str_in_output", "skip_special_tokens"} | {
    "truncate_prompt_tokens"
}
"""Fields that choose no token: of the text, of what is told beside the tokens, and of the prompt."""
NAMES = [field.name for field in fields(SamplingParams) if field.name not in OF_TEXT]
GREEDY = SamplingParams(temperature=0.0)


def needs_of(params: SamplingParams) -> dict[str, bool]:
    """What the device finds that a request's row needs at its first token, from the words that the host loads."""
    constraint = None
    if params.is_constrained:
        constraint = Constraint(params, vocab_size=VOCAB, grammar=None, words=[(5, 6)], ending=())
    request = Request("r", (3, 4, 5), params)
    sequence = Sequence(request, eos_token_ids=frozenset({1}), arrival=0, seed=0, constraint=constraint)
    sequence.row = 0
    loader = RowLoader(engine_config(), VOCAB)
    words = loader.words(sequence)[-loader._layout.size :]
    row = RowParams(**{name: jnp.asarray(value)[None] for name, value in loader._layout.views(words).items()})
    return {name: bool(needed) for name, needed in asdict(Needs.of(row, jnp.array([3]), VOCAB)).items()}


def test_every_field_has_a_case() -> None:
    assert set(NAMES) == set(OTHERS)
    assert {field.name for field in fields(Needs)} == set(WORK_OF)
    assert not any(needs_of(GREEDY).values())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", NAMES)
def test_the_host_asks_for_no_more_work_than_a_row_needs(name: str, temperature: float) -> None:
    params = replace(GREEDY, **{"temperature": temperature, name: OTHERS[name]})
    needed = [WORK_OF[part] for part, needs in needs_of(params).items() if needs and (part != "nucleus" or temperature)]
    assert params.sampling == max(needed, default=Sampling.GREEDY)


@pytest.mark.parametrize("name", NAMES)
def test_the_host_chooses_a_program_with_all_that_a_row_needs(name: str) -> None:
    """With each field alone and with each other one; and where it needs a part, a program without it is not chosen."""
    for other in [name, *NAMES]:
        if {name, other} == {"grammar", "ignore_eos"}:
            continue
        params = replace(GREEDY, **{one: OTHERS[one] for one in (name, other)})
        has, needed = asdict(Needs.up_to(params.sampling)), needs_of(params)
        assert all(has[part] for part in needed if needed[part] and part != "nucleus"), (name, other)
        assert has["nucleus"] or not (needed["nucleus"] and needed["drawn"]), "top_p says nothing of a greedy row"
