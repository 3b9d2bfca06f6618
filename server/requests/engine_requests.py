"""Build the engine's requests from a caller's prompts and parameters and from the caller's own data."""

from dataclasses import replace

from jaxgen.core.model_info import Pooling
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams, choice_seed
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.prompts import Prompt

NOTHING = SamplingParams(max_tokens=0)


def completion_request(
    request_id: str, prompt: Prompt, params: CompletionParams, index: int, context: RequestContext
) -> Request:
    """Return the request of choice ``index`` of one prompt.

    Its seed depends on ``index`` within its prompt, so that an answer does not depend on other prompts in the body.
    """
    sampling = params.sampling
    seed = None if sampling.seed is None else choice_seed(sampling.seed, index)
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
