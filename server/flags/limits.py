"""The flags of the limits in ``server/limits.py``: each has the name of its field, and its default."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from jaxgen.server.limits import Availability, Batches, Connections, Limits, Queue, Responses

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LIMITS = {
    "max_body_bytes": "maximum bytes of a request's body",
    "max_prompts": "maximum prompts of a request",
    "max_inputs": "maximum inputs of a request for embeddings",
    "max_messages": "maximum messages of a chat request, or items at /v1/responses",
    "max_parts": "maximum parts of messages, blocks, calls, results and edits of a request together",
    "max_tools": "maximum tools of a request",
    "max_n": "maximum n and best_of",
    "max_choices": "maximum completions of a request: prompts times best_of",
    "max_logprob_entries": "maximum log-probabilities of an answer, with alternatives, that wait to be sent",
    "max_stop_strings": "maximum stop strings of a request",
    "max_stop_length": "maximum characters of a stop string or bad word",
    "max_stop_token_ids": "maximum stop_token_ids of a request",
    "max_bad_words": "maximum bad_words of a request",
    "max_allowed_token_ids": "maximum allowed_token_ids of a request",
    "max_logit_bias": "maximum logit_bias entries of a request",
    "max_queued_requests": "maximum requests that wait for their first token; beyond, 429",
    "max_queued_tokens": "maximum prompt tokens of waiting requests; beyond, 429",
    "max_queued_characters": "maximum characters that wait for the tokenizer, separately for short and long texts; "
    "beyond, 429",
    "max_connections": "maximum connections; beyond, 503",
    "max_connections_per_address": "maximum connections of one IPv4 address or IPv6 /64, except --forwarded-allow-ips; "
    "beyond, 503",
    "max_arriving_bytes": "maximum bytes of all unfinished bodies, without the first 64 KiB of each; beyond, 503",
    "max_file_bytes": "maximum bytes of an uploaded file",
    "max_files": "maximum files of an API key",
    "max_stored_bytes": "maximum bytes of files, batches and results of an API key; beyond, 403, and batches fail",
    "max_uploads": "maximum uploads at once, of all callers; beyond, 429",
    "max_batches": "maximum batches of an API key that have not ended",
    "max_stored_batches": "maximum batches of an API key, including ended ones",
    "max_batch_lines": "maximum lines of a batch",
    "max_batch_lines_in_flight": "maximum batch lines in progress at once; callers share them",
    "max_stored_responses": "maximum stored responses of an API key, for previous_response_id; 0: none",
    "max_response_bytes": "maximum bytes of all stored responses; beyond, the caller with the most loses its oldest",
}
"""Limits with a flag of the same name."""

TIMES = {
    "header_timeout": "maximum seconds until a TLS handshake and a request's headers have arrived; beyond, 408",
    "timeout_keep_alive": "seconds an idle connection stays open; longer than clients and proxies keep theirs",
    "write_timeout": "seconds until a connection is closed if its client reads nothing",
    "sse_ping_interval": "seconds without an event until a stream sends a comment, to keep proxies from closing it; "
    "0: never, and headers wait for the first event",
    "body_timeout": "maximum seconds until a body has arrived, plus 1 s per 16 KiB; beyond, 408",
    "request_timeout": "maximum seconds of a request; beyond, 504 (default: no limit)",
    "batch_lifetime": "seconds an ended batch is kept; its files stay",
    "response_lifetime": "seconds a stored response is kept after its last use",
}
"""Flags in seconds; the names of their limits end in _s."""

_DEFAULTS = {
    item.name: item.default
    for group in (Limits, Queue, Connections, Batches, Responses, Availability)
    for item in fields(group)
}


def add_limits(limits: Any) -> None:
    """Add the flags of all limits to a group of flags."""
    for name, what in LIMITS.items():
        limits.add_argument(f"--{name.replace('_', '-')}", type=int, default=_DEFAULTS[name], help=what)
    for name, what in TIMES.items():
        limits.add_argument(f"--{name.replace('_', '-')}", type=float, default=_DEFAULTS[f"{name}_s"], help=what)


def limits_of[Group: "DataclassInstance"](kind: type[Group], args: Any, **others: Any) -> Group:
    """Return a group of limits from the flags of its fields; ``others``: its fields outside LIMITS and TIMES."""
    given = {name: getattr(args, name) for name in LIMITS} | {f"{name}_s": getattr(args, name) for name in TIMES}
    return kind(**{item.name: given[item.name] for item in fields(kind) if item.name in given}, **others)
