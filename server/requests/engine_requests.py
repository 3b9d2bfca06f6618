"""Build the engine's requests from a caller's prompts and parameters and from the caller's own data."""

from collections.abc import Sequence
from dataclasses import replace

from jaxgen.core.model_info import Pooling
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.prompts import Prompt

NOTHING = SamplingParams(max_tokens=0)


def completion_request(
    request_id: str, prompt: Prompt, params: CompletionParams, seed: int, answer: Sequence[int], context: RequestContext
) -> Request:
    """Return the request of one choice, which has the ``seed``. ``answer``: tokens that the choice begins with."""
    sampling = params.sampling
    return Request(
        request_id,
        prompt.tokens,
        replace(sampling, seed=seed),
        params.cache_salt,
        priority=params.priority,
        service=params.service,
        tenant=context.caller,
        tenant_weight=context.weight,
        waited_seconds=context.seconds,
        answer=tuple(answer),
        latency=params.return_latency,
    )


def embedding_request(
    request_id: str,
    prompt: Prompt,
    pooling: Pooling,
    service: ServiceClass,
    context: RequestContext,
    *,
    cache_salt: str | None,
    latency: bool,
) -> Request:
    """Return the request of one prompt's embedding."""
    return Request(
        request_id,
        prompt.tokens,
        NOTHING,
        cache_salt,
        pooling,
        service=service,
        tenant=context.caller,
        tenant_weight=context.weight,
        waited_seconds=context.seconds,
        latency=latency,
    )
