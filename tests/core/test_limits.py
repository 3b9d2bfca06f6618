"""Limits of a request: the last value that is within, the first that is not, and the field that is named."""

from typing import Any

import pytest

from jaxgen.core.errors import ContextLengthError, RequestRefusedError
from jaxgen.core.limits import check_context_length, check_dimensions, check_token_ids
from jaxgen.core.request import MAX_PRIORITY, Request
from jaxgen.core.sampling_params import MAX_LOGPROBS, MAX_SEED, Grammar, SamplingParams

# Field, the last values within, values outside.
LIMITS: list[tuple[str, list[Any], list[Any]]] = [
    ("max_tokens", [0], [-1]),
    ("min_tokens", [0, 16], [-1, 17]),
    ("temperature", [0, 2], [-0.01, 2.01, float("nan")]),
    ("top_p", [0, 0.01, 1], [-0.01, 1.01]),
    ("top_k", [0], [-1]),
    ("min_p", [0, 1], [-0.01, 1.01]),
    ("presence_penalty", [-2, 2], [-2.01, 2.01]),
    ("frequency_penalty", [-2, 2], [-2.01, 2.01]),
    ("repetition_penalty", [0.01, 10], [0, 10.01]),
    ("logit_bias", [{0: -100, 1: 100}], [{-1: 0}, {0: 100.01}, {0: float("nan")}]),
    ("seed", [None, -MAX_SEED - 1, MAX_SEED], [-MAX_SEED - 2, MAX_SEED + 1]),
    ("stop", [("a",)], [("a", "")]),
    ("logprobs", [None, 0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1]),
    ("prompt_logprobs", [None, 0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1]),
]


@pytest.mark.parametrize(("field", "within", "outside"), LIMITS)
def test_a_sampling_parameter_out_of_range_is_named(field: str, within: list[Any], outside: list[Any]) -> None:
    for value in within:
        SamplingParams(**{field: value})
    for value in outside:
        with pytest.raises(RequestRefusedError, match=f"^{field} ") as refused:
            SamplingParams(**{field: value})
        assert refused.value.param == field


def test_fields_that_exclude_each_other_are_named() -> None:
    with pytest.raises(RequestRefusedError, match=r"^ignore_eos cannot go with a grammar") as refused:
        SamplingParams(grammar=Grammar("start: /a/"), ignore_eos=True)
    assert refused.value.param == "ignore_eos"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("prompt", {"prompt": ()}),
        ("priority", {"priority": MAX_PRIORITY + 1}),
        ("priority", {"priority": -MAX_PRIORITY - 1}),
        ("cache_salt", {"cache_salt": ""}),
    ],
)
def test_a_field_of_a_request_out_of_range_is_named(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefusedError, match=f"^{field} must ") as refused:
        Request(**{"request_id": "r", "prompt": (5,), "params": SamplingParams(), **fields})
    assert refused.value.param == field


@pytest.mark.parametrize("fields", [{"waited_seconds": -1.0}, {"tenant_weight": 0.0}])
def test_a_mistake_of_the_front_end_is_no_refusal(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))) as refused:
        Request("r", (5,), SamplingParams(), **fields)
    assert not isinstance(refused.value, RequestRefusedError)


def test_token_ids_are_those_of_the_vocabulary() -> None:
    check_token_ids("prompt", (), 400)
    check_token_ids("prompt", (399, 0, 7), 400)
    for ids, bad in (((5, 400, 6), 400), ((5, -1, 6), -1), ({400: 1.0}.keys(), 400)):
        with pytest.raises(
            RequestRefusedError, match=f"^prompt: {bad} is not a valid token id: ids are 0 to 399$"
        ) as refused:
            check_token_ids("prompt", ids, 400)
        assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "param"), [(8, 3, "max_tokens"), (10, 1, "max_tokens"), (11, 0, "prompt")]
)
def test_prompt_and_answer_fit_the_context(num_prompt: int, max_tokens: int, param: str) -> None:
    check_context_length(num_prompt - 1, max_tokens, 10)
    with pytest.raises(ContextLengthError, match=r"is 11 tokens, the limit .* is 10$") as refused:
        check_context_length(num_prompt, max_tokens, 10)
    assert refused.value.param == param


def test_an_embedding_is_cut_to_numbers_that_it_has() -> None:
    check_dimensions(1, 4)
    check_dimensions(4, 4)
    for dimensions in (0, 5):
        with pytest.raises(RequestRefusedError, match=f"between 1 and 4, as this model has, not {dimensions}$"):
            check_dimensions(dimensions, 4)
