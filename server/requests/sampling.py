"""Make the sampling parameters of a request from its body and the model's defaults."""

from collections.abc import Sequence
from dataclasses import asdict

from jaxgen.core.limits import check_token_ids
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.server.errors import bad_request
from jaxgen.server.limits import Limits
from jaxgen.server.schema.base import SamplingFields

RANDOM_SEED = -1
"""The seed by which callers of OpenAI, vLLM and llama.cpp ask for a random one."""

_BY_NAME = SamplingParams.__dataclass_fields__.keys() & SamplingFields.model_fields.keys() - {"truncate_prompt_tokens"}
"""Fields of a body that are parameters of the same name; the prompt is truncated before there are any."""


def sampling_params(
    body: SamplingFields,
    model: ModelInfo,
    limits: Limits,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Return the parameters of a request, each of which is the body's or its default. Raises ApiError 400.

    ``max_tokens``, ``logprobs``, ``prompt_logprobs``: as the route resolves them.
    """
    given = {name: value for name in _BY_NAME if (value := getattr(body, name)) is not None}
    values = asdict(model.defaults) | given
    values |= {
        "max_tokens": max_tokens,
        "top_k": 0 if body.top_k == -1 else values["top_k"],
        "logit_bias": _logit_bias(body, model),
        "seed": None if body.seed == RANDOM_SEED else body.seed,
        "stop": _stop(body, limits),
        "stop_token_ids": _stop_token_ids(body, model),
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
        "allowed_token_ids": _allowed_token_ids(body, model),
        "bad_words": _texts("bad_words", body.bad_words, limits),
    }
    return SamplingParams(**values)


def _logit_bias(body: SamplingFields, model: ModelInfo) -> dict[int, float]:
    bias = {}
    for key, value in (body.logit_bias or {}).items():
        token = int(key) if key.isascii() and key.isdecimal() and len(key) < 20 else -1
        if not 0 <= token < model.vocab_size or key != str(token):
            raise bad_request(
                f"logit_bias: {key[:20]!r} is not a valid token id: ids are 0 to {model.vocab_size - 1}.", "logit_bias"
            )
        bias[token] = value
    return bias


def _stop(body: SamplingFields, limits: Limits) -> tuple[str, ...]:
    if isinstance(body.stop, str):
        _check_text("stop", body.stop, limits)
        return (body.stop,)
    return _texts("stop", body.stop, limits)


def _texts(field: str, texts: Sequence[str] | None, limits: Limits) -> tuple[str, ...]:
    """Return a list of texts that an answer must not have. Raises ApiError 400 that says which is empty or too long."""
    for i, text in enumerate(texts or ()):
        _check_text(f"{field}.{i}", text, limits)
    return tuple(texts or ())


def _check_text(name: str, text: str, limits: Limits) -> None:
    if not text:
        raise bad_request(f"{name} must not be an empty string.", name)
    if len(text) > limits.max_stop_length:
        raise bad_request(f"{name} has {len(text)} characters; this server takes {limits.max_stop_length}.", name)


def _stop_token_ids(body: SamplingFields, model: ModelInfo) -> tuple[int, ...]:
    ids = tuple(body.stop_token_ids or ())
    check_token_ids("stop_token_ids", ids, model.vocab_size)
    return ids


def _allowed_token_ids(body: SamplingFields, model: ModelInfo) -> tuple[int, ...] | None:
    if body.allowed_token_ids is None:
        return None
    ids = tuple(body.allowed_token_ids)
    check_token_ids("allowed_token_ids", ids, model.vocab_size)
    return ids
