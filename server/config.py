"""The server's limits and keys: a frozen dataclass, complete at birth."""

import re
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path

from jaxgen.core.errors import ConfigError
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.tool_calls.formats import FORMATS

TOOL_CALL_PARSERS = ("auto", *FORMATS)
MAY_BE_ZERO = ("inline_encode_chars", "max_logit_bias", "log_prompts", "check_origin")
ANY = ("*",)


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*\"',]+")


_TOKEN = re.compile(r"\*|[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cors:
    """Who may call, how. Raises ConfigError that names the flag. ``*`` alone stands for all."""

    origins: tuple[str, ...]
    methods: tuple[str, ...] = ANY
    headers: tuple[str, ...] = ANY
    credentials: bool = False
    """Whether a page may have cookies and TLS certificates sent along; API keys do not need it."""

    def __post_init__(self) -> None:
        for origin in self.origins:
            if self.origins != ANY and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins {origin!r} is no origin: write scheme://host:port, or * alone, and repeat the "
                    "flag for several"
                )
        for flag, names in (("--allowed-methods", self.methods), ("--allowed-headers", self.headers)):
            for name in names:
                if not _TOKEN.fullmatch(name):
                    raise ConfigError(f"{flag} {name!r} is no name: write one, or *, and repeat the flag for several")
        if self.credentials and self.origins == ANY:
            raise ConfigError("--allow-credentials needs origins by name, not --allowed-origins '*'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What the HTTP face allows. Raises ConfigError that names the field when a value makes no sense."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys that callers may present; empty, and no file: everyone may call."""
    api_key_file: Path | None = field(default=None, repr=False)
    """Has further keys, one a line, and may change while the server runs."""
    service_classes: tuple[ServiceClass, ...] = ()
    """What service_tier may name, beside the default, whose targets may be here too."""
    max_body_bytes: int = 4 * 2**20
    """Longest request body, bytes."""
    max_prompts: int = 128
    """Most prompts of one request."""
    max_inputs: int = 2048
    """Most inputs of one request for embeddings; OpenAI's own limit."""
    max_messages: int = 16384
    """Most messages of a conversation, or items of one."""
    max_tools: int = 128
    """Most tools of one request; OpenAI's own limit."""
    max_n: int = 128
    """Largest n and best_of."""
    max_choices: int = 256
    """Most completions computed for one request: prompts x best_of (or n)."""
    max_stop_strings: int = 4
    max_stop_length: int = 256
    """Longest stop string, characters."""
    max_stop_token_ids: int = 64
    max_logit_bias: int = 300
    """Most logit_bias entries of one request."""
    max_queued_requests: int = 1024
    """Completions that may wait for their first token, and requests for embeddings that may wait; further ones get 429,
    unless nothing waits."""
    max_queued_tokens: int = 2**22
    """Tokens that the prompts of these may have together."""
    batch_dir: Path | None = None
    """Where files and batches are kept; None: nowhere, and their routes say so."""
    max_file_bytes: int = 200 * 2**20
    """Longest file that a caller may upload."""
    max_files: int = 1000
    """Most files of a caller."""
    max_stored_bytes: int = 10 * 2**30
    """Bytes of a caller's files beyond which no upload is taken; results of batches count too."""
    max_batches: int = 16
    """Most batches of a caller that have not ended."""
    max_batch_lines: int = 1_000_000
    """Most lines of a batch."""
    max_batch_lines_in_flight: int = 32
    """Lines of all batches that are worked on at once."""
    tool_call_parser: str = "auto"
    """Format in which the model writes calls of tools; auto: as its chat template shows."""
    log_prompts: bool = False
    """Whether the log's line of a request has the text of its prompts."""
    cors: Cors | None = None
    """Which web pages of other origins may call; None: none."""
    check_origin: bool = True
    """Whether others are refused where no keys are asked for; off in an app within one that sees to that."""
    body_timeout_s: float = 30.0
    """Seconds that a body may take to arrive, beside those for its length."""
    request_timeout_s: float | None = None
    """Seconds from its arrival after which a completion is given up; None: never."""
    stall_limit_s: float = 60.0
    """Seconds that work may wait with no step finished before /health says so."""
    retry_after_s: int = 5
    """Seconds that a caller is told to wait when the server starts or drains."""
    inline_encode_chars: int = 4096
    """Prompts of more characters than this are tokenised in a thread, so that other requests go on meanwhile."""
    encode_threads: int = 2
    """Threads that tokenise long prompts; further prompts wait for one."""

    def __post_init__(self) -> None:
        if not all(self.api_keys):
            raise ConfigError("api_keys must not contain an empty key")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and item.name not in MAY_BE_ZERO and not 0 < value < inf:
                raise ConfigError(f"{item.name} must be more than 0, not {value}")
        if self.tool_call_parser not in TOOL_CALL_PARSERS:
            raise ConfigError(f"tool_call_parser must be one of {', '.join(TOOL_CALL_PARSERS)}")


DEFAULT_CONFIG = ServerConfig()
