"""The server's configuration: groups of settings, each of which checks its own. The limits are in ``limits.py``."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from jaxgen.core.errors import ConfigError
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.addresses import proxies
from jaxgen.server.limits import Availability, Batches, Connections, Limits, Queue, Responses, check_numbers

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
class Access:
    """Who may call: the holders of keys, and pages of which origins."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """API keys that callers may present; empty, and no file: callers need no key."""
    api_key_file: Path | None = field(default=None, repr=False)
    """File with further keys, one in each line; it may change while the server runs."""
    public_metrics: bool = False
    """Whether ``/metrics`` needs no key."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, in addition to localhost and addresses, by which a server may be called where callers need no key; without
    any, names of connections to loopback addresses alone are checked."""
    check_origin: bool = True
    """Whether pages of other origins, and other names of the server, are refused where callers need no key; off where
    an outer app checks them."""
    cors: Cors | None = None
    """Which web pages of other origins may call; None: none."""

    def __post_init__(self) -> None:
        if not all(self.api_keys):
            raise ConfigError("api_keys must not contain an empty key")
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise ConfigError(
                    f"--allowed-hosts {name!r} is not a valid name: write it in lower case without scheme and port, as "
                    "llm.example, *.example, or * for all"
                )

    @property
    def asks_for_keys(self) -> bool:
        """Whether callers need a key."""
        return bool(self.api_keys) or self.api_key_file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """The reverse proxy in front of the server."""

    root_path: str = ""
    """Prefix of all paths at the proxy in front, as ``/jaxgen``; requests come with it or without."""
    forwarded_allow_ips: str = "127.0.0.1,::1"
    """Addresses and networks of proxies, which say in X-Forwarded-For for whom they ask; ``*``: all."""

    def __post_init__(self) -> None:
        proxies(self.forwarded_allow_ips)
        if not _PREFIX.fullmatch(self.root_path):
            raise ConfigError(f"--root-path {self.root_path!r} is not a valid prefix: write it as /ai/jaxgen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """How answers are read and made, unless a request says so itself."""

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
    seed: int | None = None
    """Seed of the generator from which requests without a seed get theirs; None: a random one."""

    def __post_init__(self) -> None:
        if self.stream_secret is not None and len(self.stream_secret.encode()) < LEAST_SECRET_BYTES:
            raise ConfigError(
                f"--stream-secret has fewer than {LEAST_SECRET_BYTES} bytes: make one by `openssl rand -hex 32`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the log has of prompts."""

    log_prompts: bool = False
    """Whether a request's log line has the text of its prompts."""
    max_log_len: int = 4096
    """Most characters of each prompt in such a line."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The server's configuration. Each group checks its own fields: it raises ConfigError that names the field."""

    limits: Limits = field(default_factory=Limits)
    queue: Queue = field(default_factory=Queue)
    connections: Connections = field(default_factory=Connections)
    batches: Batches = field(default_factory=Batches)
    responses: Responses = field(default_factory=Responses)
    availability: Availability = field(default_factory=Availability)
    answers: Answers = field(default_factory=Answers)
    access: Access = field(default_factory=Access)
    proxy: Proxy = field(default_factory=Proxy)
    log: Log = field(default_factory=Log)
    service_classes: tuple[ServiceClass, ...] = ()
    """Classes that service_tier may name, in addition to the default class, whose targets may be here too."""
    ui: bool = True
    """Whether ``/`` and ``/docs`` are pages for browsers; else ``/`` lists the routes."""


DEFAULT_CONFIG = ServerConfig()
