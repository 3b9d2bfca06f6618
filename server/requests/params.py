"""Resolve a request's fields to sampling parameters: apply defaults, check limits and conflicts between fields."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import check_priority
from jaxgen.core.sampling_params import MAX_LOGPROBS, Grammar, SamplingParams, check_logprobs
from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass
from jaxgen.server.config import DEFAULT_CONFIG
from jaxgen.server.errors import bad_request, refusals
from jaxgen.server.limits import Limits
from jaxgen.server.requests.sampling import sampling_params
from jaxgen.server.requests.service_tier import service_class
from jaxgen.server.schema.base import CompletionRequest, SamplingFields, StreamOptions
from jaxgen.server.schema.chat import ChatRequest

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionParams:
    """Parameters of a request: what to compute, and what to show. ``sampling``: of each choice, with the request's
    seed."""

    sampling: SamplingParams
    n: int
    best_of: int
    echo: bool
    logprobs: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str | None
    prompt_logprobs: int | None = None
    """Alternatives to show for each token of the prompt; None: show no log-probabilities of the prompt."""
    least_room: int = 1
    """Tokens of the context that a prompt must leave: as many as the caller asks for, or 1 of a default."""
    keep: int | None = None
    """How many of a prompt's last tokens to keep; None: all."""
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    """Whether log-probabilities show tokens by their ids."""
    priority: int = 0
    service: ServiceClass = DEFAULT_CLASS
    names_service: bool = False
    """Whether the request named its service class."""
    return_latency: bool = False
    most_logprobs: int = DEFAULT_CONFIG.limits.max_logprob_entries
    """Most log-probabilities of the answer that may wait to be sent."""

    def within(self, room: int) -> "CompletionParams":
        """Return a copy that generates at most ``room`` tokens. Raises ApiError 400 where min_tokens is more."""
        if self.sampling.min_tokens > room:
            raise bad_request(
                f"min_tokens is {self.sampling.min_tokens}, and the context has room for {room}: "
                "lower it, or shorten the prompt.",
                "min_tokens",
            )
        if self.sampling.max_tokens <= room:
            return self
        return replace(self, sampling=replace(self.sampling, max_tokens=room))

    def with_grammar(self, grammar: Grammar) -> "CompletionParams":
        """Return a copy under this ``grammar``. Raises ApiError 400 where another field excludes it."""
        with refusals():
            return replace(self, sampling=replace(self.sampling, grammar=grammar))


@refusals()
def resolve_params(
    body: CompletionRequest, model: ModelInfo, limits: Limits, classes: Sequence[ServiceClass] = ()
) -> CompletionParams:
    """Honour or refuse every field, except model, prompt and the fields of grammars.

    Raises ApiError 400 that names the field.
    """
    if body.suffix:
        raise bad_request("suffix is not supported: this server continues prompts and does not insert.", "suffix")
    n = _n(body, limits)
    best_of = _best_of(body, n, limits)
    echoed = body.logprobs if body.echo else None
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise bad_request(
            f"logprobs must be between 0 and {MAX_LOGPROBS} (OpenAI's own limit is 5), not {body.logprobs}.", "logprobs"
        )
    sampling = sampling_params(
        body,
        model,
        limits,
        max_tokens=_or(body.max_tokens, _default_max(body, model, DEFAULT_MAX_TOKENS)),
        logprobs=0 if best_of > n and body.logprobs is None else body.logprobs,
        prompt_logprobs=_most(echoed, _prompt_logprobs(body, model)),
    )
    params = _params(body, sampling, model, limits, classes, n=n, best_of=best_of, logprobs=body.logprobs)
    # A default takes half of the context from the prompt at most.
    reserved = _or(body.max_tokens, min(sampling.max_tokens, model.max_model_len // 2))
    keep = tokens_to_keep(body.truncate_prompt_tokens, reserved, model)
    return replace(params, echo=bool(body.echo), keep=keep, least_room=_or(body.max_tokens, 1))


@refusals()
def resolve_chat_params(
    body: ChatRequest, model: ModelInfo, limits: Limits, classes: Sequence[ServiceClass] = ()
) -> CompletionParams:
    """Honour or refuse every field but model, messages and those for the template. Raises ApiError 400 that names it.

    Without a limit in the body or of the model, ``max_tokens`` of the sampling is the whole context.
    """
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
    check_logprobs("top_logprobs", body.top_logprobs)
    n = _n(body, limits)
    logprobs = _or(body.top_logprobs, 0) if body.logprobs else None
    asked = most_tokens(body)
    most = _or(asked, _default_max(body, model, model.max_model_len))
    sampling = sampling_params(
        body, model, limits, max_tokens=most, logprobs=logprobs, prompt_logprobs=_prompt_logprobs(body, model)
    )
    params = _params(body, sampling, model, limits, classes, n=n, best_of=n, logprobs=logprobs)
    room = _or(asked, 1)
    return replace(params, keep=tokens_to_keep(body.truncate_prompt_tokens, room, model), least_room=room)


def _default_max(body: SamplingFields, model: ModelInfo, otherwise: int) -> int:
    """Return the default of max_tokens: the model's or ``otherwise``, and no less than the caller's min_tokens."""
    return max(_or(model.defaults.max_tokens, otherwise), _or(body.min_tokens, 0))


def most_tokens(body: ChatRequest) -> int | None:
    """Return the limit on an answer's tokens; None: only the context limits it. Raises ApiError 400."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise bad_request("max_tokens is the old name of max_completion_tokens: send one of them.", "max_tokens")
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    most: int | None = getattr(body, name)
    if most is not None and most < 1:
        raise bad_request(f"{name} must be 1 or more, not {most}.", name)
    return most


def tokens_to_keep(asked: int | None, max_tokens: int, model: ModelInfo) -> int | None:
    """Return how many of a prompt's last tokens ``truncate_prompt_tokens`` keeps; None: all. Raises ApiError 400.

    ``max_tokens``: tokens of the context that the answer needs.
    """
    if asked == -1:
        return max(model.max_model_len - max_tokens, 1)
    if asked is not None and not 1 <= asked <= model.max_model_len:
        raise bad_request(
            f"truncate_prompt_tokens must be -1 (as many as fit) or between 1 and {model.max_model_len}, not {asked}.",
            "truncate_prompt_tokens",
        )
    return asked


def _params(
    body: SamplingFields,
    sampling: SamplingParams,
    model: ModelInfo,
    limits: Limits,
    classes: Sequence[ServiceClass],
    *,
    n: int,
    best_of: int,
    logprobs: int | None,
) -> CompletionParams:
    options = body.stream_options or StreamOptions()
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options needs stream to be true.", "stream_options")
    if options.include_obfuscation:
        raise bad_request(
            "stream_options.include_obfuscation: this server does not pad events.", "stream_options.include_obfuscation"
        )
    if body.spaces_between_special_tokens is False:
        raise bad_request(
            "spaces_between_special_tokens: this server takes only the default, true.", "spaces_between_special_tokens"
        )
    return CompletionParams(
        sampling=sampling,
        n=n,
        best_of=best_of,
        echo=False,
        logprobs=logprobs,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats) and options.include_usage is not False,
        cache_salt=body.cache_salt,
        prompt_logprobs=_prompt_logprobs(body, model),
        most_logprobs=limits.max_logprob_entries,
        return_token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        priority=_priority(body),
        service=service_class(body.service_tier, classes),
        names_service=body.service_tier is not None,
        return_latency=bool(body.return_latency),
    )


def _priority(body: SamplingFields) -> int:
    priority = _or(body.priority, 0)
    check_priority(priority)
    return priority


def _prompt_logprobs(body: SamplingFields, model: ModelInfo) -> int | None:
    asked = body.prompt_logprobs
    if asked is None:
        return None
    if body.stream:
        raise bad_request(
            "prompt_logprobs cannot be streamed: send stream false, or leave prompt_logprobs out.", "prompt_logprobs"
        )
    if asked == -1:
        if model.vocab_size > MAX_LOGPROBS:
            raise bad_request(
                f"prompt_logprobs -1 asks for the whole vocabulary of {model.vocab_size} tokens; this server gives "
                f"{MAX_LOGPROBS} at most.",
                "prompt_logprobs",
            )
        return model.vocab_size
    check_logprobs("prompt_logprobs", asked)
    return asked


def _most(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _n(body: SamplingFields, limits: Limits) -> int:
    n = _or(body.n, 1)
    if not 1 <= n <= limits.max_n:
        raise bad_request(f"n must be between 1 and {limits.max_n}, not {n}.", "n")
    return n


def _best_of(body: CompletionRequest, n: int, limits: Limits) -> int:
    best_of = _or(body.best_of, n)
    if not n <= best_of <= limits.max_n:
        raise bad_request(f"best_of must be between n ({n}) and {limits.max_n}, not {best_of}.", "best_of")
    if best_of > n and body.stream:
        raise bad_request(
            "best_of over n cannot be streamed, since the best are known only at the end: "
            "send stream false, or set best_of to the value of n.",
            "best_of",
        )
    return best_of


def _or[T](value: T | None, default: T) -> T:
    return default if value is None else value
