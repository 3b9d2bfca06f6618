"""A field that all APIs share is named once: it reaches the sampling parameters from each of them."""

from dataclasses import fields
from typing import Any, get_args

import pytest

from jaxgen.core.model_info import ModelInfo
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.server.limits import Limits
from jaxgen.server.messages.input import as_chat as chat_of_messages
from jaxgen.server.requests.params import resolve_chat_params
from jaxgen.server.responses.input import as_chat as chat_of_responses
from jaxgen.server.responses.items import RequestItems
from jaxgen.server.schema.base import OpenAIFields, SamplingFields, SharedFields
from jaxgen.server.schema.chat import ChatRequest
from jaxgen.server.schema.messages import MessagesRequest
from jaxgen.server.schema.responses import ResponsesRequest

TRANSLATED: dict[str, tuple[Any, Any]] = {
    "logit_bias": ({"5": 1.0}, {5: 1.0}),
    "stop": ("x", ("x",)),
    "stop_token_ids": ([7], (7,)),
    "bad_words": (["x"], ("x",)),
    "allowed_token_ids": ([7], (7,)),
}
"""By field: a value of a body, and the parameter that it becomes."""
EXAMPLES: dict[type, Any] = {bool: True, int: 2, float: 0.25, str: "x"}
OF_STREAMS = {"resume", "return_event_ids"}
UNUSED = {"truncate_prompt_tokens", "max_tokens"}
"""Parameters of the prompt and of the route."""
PARAMETERS = {field.name for field in fields(SamplingParams)} & set(SamplingFields.model_fields) - UNUSED
MODEL = ModelInfo("m", 64, 32)


def example(name: str) -> Any:
    """A value of a field, other than its default."""
    if name in TRANSLATED:
        return TRANSLATED[name][0]
    if name == "skip_special_tokens":
        return False
    kinds = [kind for kind in get_args(SamplingFields.model_fields[name].annotation) if kind is not type(None)]
    return next((EXAMPLES[kind] for kind in EXAMPLES if kind in kinds), 2)


def of_responses(**body: Any) -> ChatRequest:
    return chat_of_responses(ResponsesRequest(input="Hi", **body), RequestItems(None, [], [], []))


def of_messages(**body: Any) -> ChatRequest:
    return chat_of_messages(
        MessagesRequest.model_validate({"messages": [{"role": "user", "content": "Hi"}], **body}), 9
    )


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_a_field_of_a_chat_is_the_parameter_of_its_name(name: str) -> None:
    given = example(name)
    params = resolve_chat_params(ChatRequest.model_validate({name: given}), MODEL, Limits()).sampling
    expected = TRANSLATED[name][1] if name in TRANSLATED else given
    assert getattr(params, name) == expected != getattr(SamplingParams(), name)


@pytest.mark.parametrize("name", sorted({*SharedFields.model_fields} - {"model"}))
def test_every_api_has_the_fields_that_all_share(name: str) -> None:
    given = example(name)
    assert getattr(of_messages(**{name: given}), name) == getattr(of_responses(**{name: given}), name) == given


@pytest.mark.parametrize("name", sorted({*OpenAIFields.model_fields} - OF_STREAMS - {"structured_outputs"}))
def test_responses_have_the_fields_of_openais_apis(name: str) -> None:
    assert getattr(of_responses(**{name: example(name)}), name) == example(name)
