"""The flags of ``jaxgen serve`` that say who may call, what is logged, and what a request may ask for."""

import argparse
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.server.config import DEFAULT_CONFIG, Cors, ServerConfig
from jaxgen.server.flags.access import api_keys, host
from jaxgen.server.flags.service_classes import parse_classes
from jaxgen.server.log import FORMATS, LEVELS
from jaxgen.terminal.command_line import CommandLine

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
MAX_PORT = 65535
LIMITS = {
    "max_body_bytes": "longest body",
    "max_prompts": "most prompts",
    "max_inputs": "most inputs of one request for embeddings",
    "max_messages": "most messages of a conversation, or items of one at /v1/responses",
    "max_tools": "most tools of one request",
    "max_n": "largest n and best_of",
    "max_choices": "most completions, prompts x best_of",
    "max_logprob_entries": "most log-probabilities of one answer that wait to be sent, alternatives among them",
    "max_stop_strings": "most stop strings",
    "max_stop_length": "longest stop string or bad word, characters",
    "max_stop_token_ids": "most stop_token_ids",
    "max_bad_words": "most bad_words",
    "max_allowed_token_ids": "most allowed_token_ids",
    "max_logit_bias": "most logit_bias entries",
    "max_queued_requests": "most completions that wait for their first token, and requests for embeddings; beyond, 429",
    "max_queued_tokens": "most tokens in their prompts; beyond, 429",
    "max_queued_characters": "most characters that wait for the tokenizer, long texts and others each; beyond, 429",
    "max_connections": "most connections; beyond, 503",
    "max_connections_per_address": "most connections of one address, of IPv6 a /64, but for --forwarded-allow-ips; "
    "beyond, 503",
    "max_arriving_bytes": "most bytes of unfinished bodies together, the first 64 KiB of each aside; beyond, 503",
    "max_file_bytes": "longest file to upload",
    "max_files": "most files of a caller",
    "max_stored_bytes": "bytes of a caller's files and batches beyond which none is taken",
    "max_uploads": "most uploads at once, of one caller or shared by several; beyond, 429",
    "max_batches": "most batches of a caller that have not ended",
    "max_stored_batches": "most batches of a caller, ended ones too",
    "max_batch_lines": "most lines of a batch",
    "max_batch_lines_in_flight": "lines of all batches that are worked on at once",
    "max_stored_responses": "most responses of a caller that are kept to be continued; 0: none",
    "max_response_bytes": "most bytes of all kept responses; beyond, the caller with the most loses its oldest",
}
"""Fields of ServerConfig with a flag of the same name."""

TIMES = {
    "header_timeout": "seconds a TLS handshake and a request's head may take to arrive; beyond, 408",
    "timeout_keep_alive": "seconds a connection may be idle after an answer; more than clients and proxies keep theirs",
    "write_timeout": "seconds after which a connection ends whose caller reads nothing",
    "sse_ping_interval": "seconds without an event after which a stream gets a comment, so that no proxy gives it up; "
    "0: never, and its head waits for the first event",
    "body_timeout": "seconds a body may take to arrive, beside one for every 16 KiB; beyond, 408",
    "request_timeout": "seconds a completion may take from its arrival; beyond, 504 (default: as long as it takes)",
    "batch_lifetime": "seconds a batch is kept after its end; its files stay",
    "response_lifetime": "seconds a response is kept to be continued, after its last use",
}
"""Flags in seconds, whose fields in ServerConfig end in _s."""


def add_server_groups(parser: CommandLine) -> None:
    """Add the groups, the long one of limits last."""
    server = parser.add_argument_group("server")
    _add_address(server)
    _add_callers(server)
    _add_log(parser.add_argument_group("log"))
    _add_browsers_and_tls(parser)
    _add_limits(parser.add_argument_group("limits"))


def _add_address(server: Any) -> None:
    server.add_argument(
        "--host",
        type=host,
        help=f"address to listen at; 0.0.0.0: all of IPv4, ::: all of IPv6 and IPv4 (default: {DEFAULT_HOST})",
    )
    server.add_argument("--port", type=port, help=f"0: a free one (default: {DEFAULT_PORT})")
    server.add_argument(
        "--uds",
        type=Path,
        metavar="SOCKET",
        help="Unix socket to listen at in place of --host and --port: made with the rights that the umask leaves, and "
        "removed at the end",
    )
    server.add_argument(
        "--root-path",
        type=_root_path,
        metavar="/PREFIX",
        help="prefix of all paths at the proxy in front, which may pass it on or strip it",
    )


def _add_callers(server: Any) -> None:
    server.add_argument(
        "--api-key",
        action="append",
        help="asked of every request; may be repeated; better set as JAXGEN_API_KEY, since ps shows flags",
    )
    server.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="further keys, one a line; read again when it changes, without a restart",
    )
    server.add_argument(
        "--public-metrics",
        action="store_true",
        help="/metrics needs no key: routers and Prometheus often have none",
    )
    server.add_argument(
        "--service-class",
        action="append",
        metavar="'NAME ttft=S prompt-rate=T inter-token=S late=serve'",
        help="class that service_tier may name, and its targets: seconds to the first token, one more for every T "
        "tokens of the prompt, and between tokens; what would be late is refused (429), or served; may be repeated",
    )
    server.add_argument(
        "--inter-token-target",
        type=float,
        metavar="SECONDS",
        help="most time between tokens, which prompts of other requests must leave; short for --service-class "
        "'default inter-token=SECONDS late=serve' (default: as the step times of model and machine suggest)",
    )
    server.add_argument(
        "--forwarded-allow-ips",
        default=DEFAULT_CONFIG.forwarded_allow_ips,
        metavar="ADDRESSES",
        help="proxies in front, addresses and networks with commas between them, or *: their X-Forwarded-For and "
        "X-Forwarded-Proto are believed",
    )
    server.add_argument(
        "--batch-dir",
        type=Path,
        metavar="DIR",
        help="keeps files and batches (default: none, and their routes answer 404)",
    )
    server.add_argument(
        "--no-ui",
        dest="ui",
        action="store_false",
        help="no pages for browsers at / and /docs: / lists the routes instead",
    )
    server.add_argument(
        "--stream-secret",
        metavar="SECRET",
        help="secret with which ids of events are made, the same for all servers that go on with each other's streams; "
        "better set as JAXGEN_STREAM_SECRET, since ps shows flags (default: made of the caller's API key; without keys "
        "one of this process)",
    )
    server.add_argument(
        "--stream-event-ids",
        action="store_true",
        help="events of all streams have ids, by which a stream that broke goes on (default: where the request asks)",
    )
    server.add_argument("--shutdown-timeout", type=float, default=30.0, help="seconds running requests get at SIGTERM")


def _add_log(log: Any) -> None:
    log.add_argument("--log-format", choices=FORMATS, default="plain", help="of lines on standard error")
    log.add_argument("--log-level", choices=LEVELS, default="info", help="debug: probes too; warning: no requests")
    log.add_argument("--log-prompts", action="store_true", help="the text of prompts too, in a request's line")
    log.add_argument(
        "--max-log-len",
        type=int,
        default=DEFAULT_CONFIG.max_log_len,
        help="most characters of each prompt there, with --log-prompts",
    )
    log.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="URL of an OpenTelemetry collector, http://HOST:4318/v1/traces: a span for each request goes there (needs "
        "the extra otel)",
    )


def _add_limits(limits: Any) -> None:
    for name, what in LIMITS.items():
        limits.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(DEFAULT_CONFIG, name), help=what)
    for name, what in TIMES.items():
        default = getattr(DEFAULT_CONFIG, f"{name}_s")
        limits.add_argument(f"--{name.replace('_', '-')}", type=float, default=default, help=what)


def _add_browsers_and_tls(parser: CommandLine) -> None:
    tls = parser.add_argument_group("tls")
    tls.add_argument("--ssl-certfile", type=Path, metavar="FILE", help="PEM certificate, and its chain: serve https")
    tls.add_argument("--ssl-keyfile", type=Path, metavar="FILE", help="its PEM key (default: in --ssl-certfile)")
    tls.add_argument(
        "--ssl-ca-certs",
        type=Path,
        metavar="FILE",
        help="callers must show a certificate that one of these signed",
    )
    cors = parser.add_argument_group("cors")
    cors.add_argument(
        "--allowed-origins",
        action="append",
        metavar="ORIGIN",
        help="origin whose pages may call from a browser, scheme://host:port, or *; may be repeated (default: none)",
    )
    cors.add_argument(
        "--allowed-hosts",
        action="append",
        metavar="NAME",
        help="name by which a server without keys may be called, beside localhost and addresses, *.NAME or *; may be "
        "repeated (default: any, but at loopback addresses none)",
    )
    cors.add_argument(
        "--allowed-methods", action="append", metavar="METHOD", help="method that they may use (default: *)"
    )
    cors.add_argument(
        "--allowed-headers", action="append", metavar="HEADER", help="header that they may send (default: *)"
    )
    cors.add_argument("--allow-credentials", action="store_true", help="let them send cookies and certificates")


def port(text: str) -> int:
    """Parse a port. Raises ArgumentTypeError, also for a URL, as in a pod beside a Kubernetes service called jaxgen."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no port: Kubernetes sets JAXGEN_PORT like this for a service called jaxgen; give the pod "
            "enableServiceLinks: false, or the server --port"
        )
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: write a number from 0 (any free one) to {MAX_PORT}")
    return number


def _root_path(text: str) -> str:
    return text.rstrip("/")


def settle_address(parser: CommandLine, args: Any) -> None:
    """Fill in address and port; both are None with ``--uds``, which ends the process where one of them is given too.

    On the command line ``--uds`` wins over the environment and the file, as an image sets JAXGEN_HOST and JAXGEN_PORT.
    """
    if args.uds is None:
        args.host = DEFAULT_HOST if args.host is None else args.host
        args.port = DEFAULT_PORT if args.port is None else args.port
        return
    given = [name for name in ("host", "port") if getattr(args, name) is not None]
    if parser.was_given("--uds"):
        given = [name for name in given if parser.was_given(f"--{name}")]
    if given:
        parser.error(f"--uds {args.uds} takes the place of --{given[0]} {getattr(args, given[0])}: give one of them")
    args.host = args.port = None


def server_config(args: Any) -> ServerConfig:
    """Return the server's configuration from the flags. Raises ConfigError."""
    limits = {name: getattr(args, name) for name in LIMITS}
    times = {f"{name}_s": getattr(args, name) for name in TIMES}
    return ServerConfig(
        api_keys=api_keys(args.api_key or ()),
        api_key_file=args.api_key_file,
        batch_dir=args.batch_dir,
        public_metrics=args.public_metrics,
        log_prompts=args.log_prompts,
        max_log_len=args.max_log_len,
        seed=args.seed,
        root_path=args.root_path or "",
        ui=args.ui,
        forwarded_allow_ips=args.forwarded_allow_ips,
        cors=cors_of(args),
        service_classes=parse_classes(args.service_class or (), args.inter_token_target),
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        structured_additional_properties=args.structured_additional_properties,
        allowed_hosts=tuple(args.allowed_hosts or ()),
        stream_secret=args.stream_secret,
        stream_event_ids=args.stream_event_ids,
        **limits,
        **times,
    )


def cors_of(args: Any) -> Cors | None:
    """Return the CORS settings from the flags; None: no page of another origin may call. Raises ConfigError."""
    given = {
        "methods": args.allowed_methods and tuple(args.allowed_methods),
        "headers": args.allowed_headers and tuple(args.allowed_headers),
        "credentials": args.allow_credentials,
    }
    given = {name: value for name, value in given.items() if value}
    if args.allowed_origins:
        return Cors(origins=tuple(args.allowed_origins), **given)
    if given:
        flag = "--allow-credentials" if "credentials" in given else f"--allowed-{next(iter(given))}"
        raise ConfigError(f"{flag} needs --allowed-origins")
    return None
