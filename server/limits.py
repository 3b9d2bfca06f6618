"""The limits of the server's configuration, by what they limit. Every check raises ConfigError that names the field."""

from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from jaxgen.core.config import DEFAULT_MAX_LOGIT_BIAS
from jaxgen.core.errors import ConfigError


def check_numbers(group: Any, *may_be_zero: str) -> None:
    """Check that the numbers of a group of settings are positive and finite, or 0 where the name says so.

    Raises ConfigError that names the field.
    """
    for item in fields(group):
        value = getattr(group, item.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        zero = item.name in may_be_zero
        if not (0 < value < inf or (zero and value == 0)):
            raise ConfigError(f"{item.name} must be {'0 or more' if zero else 'more than 0'}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one request."""

    max_body_bytes: int = 4 * 2**20
    """Longest request body, bytes."""
    max_prompts: int = 128
    """Most prompts of one request."""
    max_inputs: int = 2048
    """Most inputs of one request for embeddings; OpenAI's own limit."""
    max_messages: int = 16384
    """Most messages of a conversation, or items of one."""
    max_parts: int = 16384
    """Most parts, blocks, calls, results and edits of one request together."""
    max_tools: int = 128
    """Most tools of one request; OpenAI's own limit."""
    max_n: int = 128
    """Largest n and best_of."""
    max_logprob_entries: int = 2**21
    """Most log-probabilities of one answer that wait to be sent, alternatives among them; one takes some 75 bytes of
    JSON."""
    max_choices: int = 256
    """Most completions computed for one request: prompts x best_of (or n)."""
    max_stop_strings: int = 4
    """Most stop strings of one request; OpenAI's own limit."""
    max_stop_length: int = 256
    """Longest stop string or bad word, characters."""
    max_stop_token_ids: int = 64
    max_bad_words: int = 128
    """Most bad_words of one request."""
    max_allowed_token_ids: int = 4096
    """Most allowed_token_ids of one request."""
    max_logit_bias: int = DEFAULT_MAX_LOGIT_BIAS
    """Most logit_bias entries of one request."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_logit_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Limits of what waits: requests for their first token, and texts for the tokenizer."""

    max_queued_requests: int = 1024
    """Most choices that wait for their first token, and requests for embeddings that wait; further ones get 429, unless
    the queue is empty."""
    max_queued_tokens: int = 2**22
    """Most tokens of the prompts of these requests together."""
    max_queued_characters: int = 2**24
    """Most characters of texts that wait for the tokenizer, of long ones and of short ones each; further ones get 429,
    unless none waits."""
    inline_encode_chars: int = 4096
    """Prompts of more characters than this are tokenised in a thread, so that they do not block other requests."""
    encode_threads: int = 2
    """Threads that tokenise such prompts up to 65,536 characters; one thread has the longer ones."""

    def __post_init__(self) -> None:
        check_numbers(self, "inline_encode_chars")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Limits of connections, and of the time that their callers may take."""

    max_connections: int = 4096
    """Most connections; further ones get 503."""
    max_connections_per_address: int = 1024
    """Most connections of one address, except a proxy's; the addresses of an IPv6 /64 count as one."""
    max_arriving_bytes: int = 256 * 2**20
    """Most bytes of unfinished bodies together, the first 64 KiB of each aside; further ones get 503."""
    header_timeout_s: float = 20.0
    """Seconds that the head of a request may take to arrive, from the connection's beginning or its own."""
    timeout_keep_alive_s: float = 120.0
    """Seconds that a connection may be idle after an answer: longer than clients and proxies keep theirs."""
    write_timeout_s: float = 60.0
    """Seconds after which a connection ends whose caller reads nothing of what there is for it."""
    sse_ping_interval_s: float = 15.0
    """Seconds without an event after which a stream gets a comment; 0: never."""
    body_timeout_s: float = 30.0
    """Seconds that a body may take to arrive, plus the seconds that its length allows."""

    def __post_init__(self) -> None:
        check_numbers(self, "sse_ping_interval_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The directory and the limits of files and batches."""

    batch_dir: Path | None = None
    """Directory of files and batches; None: the server stores none, and their routes answer 404."""
    max_file_bytes: int = 200 * 2**20
    """Longest file that a caller may upload."""
    max_files: int = 1000
    """Most files of a caller."""
    max_stored_bytes: int = 10 * 2**30
    """Most bytes of a caller's files and batches for more to be taken; results of running batches count too."""
    max_uploads: int = 4
    """Most uploads at once, of one caller or shared by several; further ones get 429."""
    max_batches: int = 16
    """Most batches of a caller that have not ended."""
    max_stored_batches: int = 10_000
    """Most batches of a caller, ended ones too."""
    batch_lifetime_s: float = 30 * 86400.0
    """Seconds that a batch is kept after its end; its files stay."""
    max_batch_lines: int = 1_000_000
    """Most lines of a batch."""
    max_batch_lines_in_flight: int = 32
    """Most lines of batches that are computed at once, of one caller or shared by several."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """Limits of the responses that are kept."""

    max_stored_responses: int = 1000
    """Most responses of a caller that are kept for requests that continue them; 0: none."""
    max_response_bytes: int = 256 * 2**20
    """Most bytes of the kept responses of all callers; beyond, the caller with the most loses its oldest."""
    response_lifetime_s: float = 86400.0
    """Seconds that a response is kept after it was last used."""

    def __post_init__(self) -> None:
        check_numbers(self, "max_stored_responses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """The times after which a request, or the engine, has taken too long and a refused caller may ask again."""

    request_timeout_s: float | None = None
    """Seconds from its arrival after which a request is cancelled; None: never."""
    stall_limit_s: float = 60.0
    """Seconds without a finished step, while work waits, after which /health fails."""
    retry_after_s: int = 5
    """Seconds in Retry-After while the server starts or drains, or where no better estimate is known."""

    def __post_init__(self) -> None:
        check_numbers(self)
