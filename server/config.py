"""The server's configuration, as frozen dataclasses."""

import re
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path

from jaxgen.core.config import DEFAULT_MAX_LOGIT_BIAS
from jaxgen.core.errors import ConfigError
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.addresses import proxies
from jaxgen.server.tool_calls.recognised import REASONING_PARSERS, TOOL_PARSERS, check_pair

MAY_BE_ZERO = (
    "inline_encode_chars",
    "max_logit_bias",
    "max_stored_responses",
    "log_prompts",
    "check_origin",
    "sse_ping_interval_s",
    "ui",
    "public_metrics",
    "structured_additional_properties",
    "stream_event_ids",
)
ANY = ("*",)
LEAST_SECRET_BYTES = 16


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*\"',]+")


_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


_TOKEN = re.compile(r"\*|[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cors:
    """Which web pages may call, with which methods and headers. ``*`` alone stands for all.

    Raises ConfigError that names the flag.
    """

    origins: tuple[str, ...]
    methods: tuple[str, ...] = ANY
    headers: tuple[str, ...] = ANY
    credentials: bool = False
    """Whether browsers may send a page's cookies and TLS certificates; API keys do not need this."""

    def __post_init__(self) -> None:
        for origin in self.origins:
            if self.origins != ANY and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins {origin!r} is not a valid origin: write scheme://host:port, or * alone, and "
                    "repeat the flag for several"
                )
        for flag, names in (("--allowed-methods", self.methods), ("--allowed-headers", self.headers)):
            for name in names:
                if not _TOKEN.fullmatch(name):
                    raise ConfigError(
                        f"{flag} {name!r} is not a valid name: write one, or *, and repeat the flag for several"
                    )
        if self.credentials and self.origins == ANY:
            raise ConfigError("--allow-credentials needs origins by name, not --allowed-origins '*'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The server's limits and keys. Raises ConfigError that names the field of an invalid value."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """API keys that callers may present; empty, and no file: callers need no key."""
    api_key_file: Path | None = field(default=None, repr=False)
    """File with further keys, one in each line; it may change while the server runs."""
    service_classes: tuple[ServiceClass, ...] = ()
    """Classes that service_tier may name, in addition to the default class, whose targets may be here too."""
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
    max_queued_requests: int = 1024
    """Most choices that wait for their first token, and requests for embeddings that wait; further ones get 429, unless
    the queue is empty."""
    max_queued_tokens: int = 2**22
    """Most tokens of the prompts of these requests together."""
    max_queued_characters: int = 2**24
    """Most characters of texts that wait for the tokenizer, of long ones and of short ones each; further ones get 429,
    unless none waits."""
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
    max_stored_responses: int = 1000
    """Most responses of a caller that are kept for requests that continue them; 0: none."""
    max_response_bytes: int = 256 * 2**20
    """Most bytes of the kept responses of all callers; beyond, the caller with the most loses its oldest."""
    response_lifetime_s: float = 86400.0
    """Seconds that a response is kept after it was last used."""
    tool_call_parser: str = "auto"
    """Format in which the model writes tool calls; auto: as its chat template shows; none: it writes none."""
    reasoning_parser: str = "auto"
    """Format in which the model writes what it thinks before it answers; as ``tool_call_parser``."""
    structured_additional_properties: bool = False
    """Whether objects of schemas may have keys that these do not name, unless a request says so or not."""
    stream_secret: str | None = field(default=None, repr=False)
    """Secret with which ids of events are made, the same for servers that go on with each other's streams; None: made
    of the caller's API key, or one of this process."""
    stream_event_ids: bool = False
    """Whether the events of a stream have ids where its request says nothing of them."""
    public_metrics: bool = False
    """Whether ``/metrics`` needs no key."""
    log_prompts: bool = False
    """Whether a request's log line has the text of its prompts."""
    max_log_len: int = 4096
    """Most characters of each prompt in such a line."""
    seed: int | None = None
    """Seed of the generator from which requests without a seed get theirs; None: a random one."""
    root_path: str = ""
    """Prefix of all paths at the proxy in front, as ``/jaxgen``; requests come with it or without."""
    cors: Cors | None = None
    """Which web pages of other origins may call; None: none."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, in addition to localhost and addresses, by which a server may be called where callers need no key; without
    any, names of connections to loopback addresses alone are checked."""
    check_origin: bool = True
    """Whether pages of other origins, and other names of the server, are refused where callers need no key; off where
    an outer app checks them."""
    ui: bool = True
    """Whether ``/`` and ``/docs`` are pages for browsers; else ``/`` lists the routes."""
    max_connections: int = 4096
    """Most connections; further ones get 503."""
    max_connections_per_address: int = 1024
    """Most connections of one address, except a proxy's; the addresses of an IPv6 /64 count as one."""
    max_arriving_bytes: int = 256 * 2**20
    """Most bytes of unfinished bodies together, the first 64 KiB of each aside; further ones get 503."""
    forwarded_allow_ips: str = "127.0.0.1,::1"
    """Addresses and networks of proxies, which say in X-Forwarded-For for whom they ask; ``*``: all."""
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
    request_timeout_s: float | None = None
    """Seconds from its arrival after which a request is cancelled; None: never."""
    stall_limit_s: float = 60.0
    """Seconds without a finished step, while work waits, after which /health fails."""
    retry_after_s: int = 5
    """Seconds in Retry-After while the server starts or drains, or where no better estimate is known."""
    inline_encode_chars: int = 4096
    """Prompts of more characters than this are tokenised in a thread, so that they do not block other requests."""
    encode_threads: int = 2
    """Threads that tokenise such prompts up to 65,536 characters; one thread has the longer ones."""

    def __post_init__(self) -> None:
        if not all(self.api_keys):
            raise ConfigError("api_keys must not contain an empty key")
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int | float) or item.name == "seed":
                continue
            may_be_zero = item.name in MAY_BE_ZERO
            if not (0 < value < inf or (may_be_zero and value == 0)):
                raise ConfigError(f"{item.name} must be {'0 or more' if may_be_zero else 'more than 0'}, not {value}")
        if self.stream_secret is not None and len(self.stream_secret.encode()) < LEAST_SECRET_BYTES:
            raise ConfigError(
                f"--stream-secret has fewer than {LEAST_SECRET_BYTES} bytes: make one by `openssl rand -hex 32`"
            )
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise ConfigError(
                    f"--allowed-hosts {name!r} is not a valid name: write it in lower case without scheme and port, as "
                    "llm.example, *.example, or * for all"
                )
        proxies(self.forwarded_allow_ips)
        if not _PREFIX.fullmatch(self.root_path):
            raise ConfigError(f"--root-path {self.root_path!r} is not a valid prefix: write it as /ai/jaxgen")
        _check_parsers(self.tool_call_parser, self.reasoning_parser)


def _check_parsers(tools: str, reasoning: str) -> None:
    for field_name, name, known in (
        ("tool_call_parser", tools, TOOL_PARSERS),
        ("reasoning_parser", reasoning, REASONING_PARSERS),
    ):
        if name not in known:
            raise ConfigError(f"{field_name} must be one of {', '.join(known)}, not {name!r}")
    try:
        check_pair(tools, reasoning)
    except ValueError as error:
        raise ConfigError(f"tool_call_parser and reasoning_parser: {error}") from error


DEFAULT_CONFIG = ServerConfig()
