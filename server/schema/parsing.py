"""Turn the JSON of a request's body into its typed request: sizes are looked at first, then fields and types."""

from functools import cache
from typing import Any

from pydantic import ValidationError

from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.limits import Limits
from jaxgen.server.schema.base import PROMPT_MESSAGE, UNKNOWN, Body, Prompt, prompt_kind
from jaxgen.server.schema.counting import check_parts

MAX_FAULTS = 1000
"""Most faults of a body of which one is named: an object of unknown fields has one for each field."""

MAX_METADATA = 16
"""Most pairs in ``metadata``; OpenAI's limit."""


def parse_body[Fields: Body](kind: type[Fields], data: dict[str, Any], limits: Limits) -> Fields:
    """Return the typed request. Raises ApiError 400 that names an unknown, unsupported, oversized or mistyped field."""
    for name in [name for name in data if name not in kind.model_fields]:
        unsupported = kind.unsupported.get(name)
        if unsupported is None:
            raise _unknown(name[:100])
        if not unsupported.allows(data[name]):
            raise bad_request(f"{name}: {unsupported.reason}.", name, unsupported.code)
    data = {name: value for name, value in data.items() if name in kind.model_fields}
    # Sizes first: a value over a limit need not be validated entry by entry.
    _check_sizes(kind, data, limits)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _first_fault(kind, error) from error


@cache
def _prompts_of(kind: type[Body]) -> frozenset[str]:
    """Return the names of the fields of type Prompt."""
    return frozenset(name for name, field in kind.model_fields.items() if field.annotation == Prompt | None)


def _check_sizes(kind: type[Body], data: dict[str, Any], limits: Limits) -> None:
    prompts = {"input": limits.max_inputs, "prompt": limits.max_prompts}
    others = _list_limits(limits)
    for name, value in data.items():
        is_prompt = name in _prompts_of(kind)
        limit = (prompts if is_prompt else others).get(name)
        one_prompt = is_prompt and prompt_kind(value) == ":tokens"
        if limit is not None and isinstance(value, list | dict) and len(value) > limit and not one_prompt:
            raise bad_request(f"{name} has {len(value)} entries; this server takes {limit}.", name)
    check_parts(kind, data, limits.max_parts, frozenset(others))


def _list_limits(limits: Limits) -> dict[str, int]:
    """Return the limits on the entries of fields other than prompts."""
    return {
        "allowed_token_ids": limits.max_allowed_token_ids,
        "bad_words": limits.max_bad_words,
        "input": limits.max_messages,
        "logit_bias": limits.max_logit_bias,
        "messages": limits.max_messages,
        "metadata": MAX_METADATA,
        "stop": limits.max_stop_strings,
        "stop_sequences": limits.max_stop_strings,
        "stop_token_ids": limits.max_stop_token_ids,
        "tools": limits.max_tools,
    }


def _first_fault(kind: type[Body], error: ValidationError) -> ApiError:
    if error.error_count() > MAX_FAULTS:
        return bad_request(f"The body has {error.error_count()} fields that are unknown or of another type.")
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = [str(step)[:100] for step in fault["loc"] if not str(step).startswith(":")]  # tags of unions are not fields
    param = ".".join(path)
    if param in _prompts_of(kind):
        return bad_request(f"{PROMPT_MESSAGE.format(param)}.", param)
    if fault["type"] == "extra_forbidden":
        return _unknown(param)
    return bad_request(f"{param}: {fault['msg']}.", param)


def _unknown(name: str) -> ApiError:
    return bad_request(f"Unknown field {name!r}.", name, UNKNOWN)
