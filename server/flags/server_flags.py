"""The flags of ``jaxgen serve`` that say who may call, what is logged, and what a request may ask for."""

import argparse
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.server.config import DEFAULT_CONFIG, Access, Answers, Cors, Log, Proxy, ServerConfig
from jaxgen.server.flags.access import api_keys, host
from jaxgen.server.flags.limits import add_limits, limits_of
from jaxgen.server.flags.service_classes import parse_classes
from jaxgen.server.limits import Availability, Batches, Connections, Limits, Queue, Responses
from jaxgen.server.log import FORMATS, LEVELS
from jaxgen.server.tool_calls.recognised import check_parsers
from jaxgen.terminal.command_line import CommandLine

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
MAX_PORT = 65535


def add_server_groups(parser: CommandLine) -> None:
    """Add the groups, the long one of limits last."""
    server = parser.add_argument_group("server")
    _add_address(server)
    _add_callers(server)
    _add_log(parser.add_argument_group("log"))
    _add_browsers_and_tls(parser)
    add_limits(parser.add_argument_group("limits"))


def _add_address(server: Any) -> None:
    server.add_argument(
        "--host",
        type=host,
        help=f"address to listen on; 0.0.0.0: all of IPv4; ::: all of IPv6 and IPv4 (default: {DEFAULT_HOST})",
    )
    server.add_argument("--port", type=port, help=f"port to listen on; 0: any free port (default: {DEFAULT_PORT})")
    server.add_argument(
        "--uds",
        type=Path,
        metavar="SOCKET",
        help="Unix socket to listen on instead of --host and --port; the umask sets who may use it",
    )
    server.add_argument(
        "--root-path",
        type=_root_path,
        metavar="/PREFIX",
        help="prefix of all paths at the reverse proxy, which may pass it on or strip it",
    )


def _add_callers(server: Any) -> None:
    server.add_argument(
        "--api-key",
        action="append",
        help="key that every request must send; may be repeated; set it as JAXGEN_API_KEY, because ps shows flags",
    )
    server.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with more keys, one per line; a change takes effect without a restart",
    )
    server.add_argument(
        "--public-metrics",
        action="store_true",
        help="/metrics needs no key, for Prometheus and routers",
    )
    server.add_argument(
        "--service-class",
        action="append",
        metavar="'NAME ttft=S prompt-rate=T inter-token=S late=serve'",
        help="service class for service_tier, with latency targets: ttft seconds to the first token, plus 1 s per "
        "prompt-rate prompt tokens, and inter-token seconds between tokens; a request that would miss one gets 429, or "
        "is served with late=serve; may be repeated",
    )
    server.add_argument(
        "--inter-token-target",
        type=float,
        metavar="SECONDS",
        help="target for the time between tokens; short for --service-class 'default inter-token=SECONDS late=serve' "
        "(default: none; see docs/tuning.md)",
    )
    server.add_argument(
        "--forwarded-allow-ips",
        default=DEFAULT_CONFIG.proxy.forwarded_allow_ips,
        metavar="ADDRESSES",
        help="reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted: addresses and networks with "
        "commas between them, or *",
    )
    server.add_argument(
        "--batch-dir",
        type=Path,
        metavar="DIR",
        help="directory of files and batches (default: none, and /v1/files and /v1/batches answer 404)",
    )
    server.add_argument(
        "--no-ui",
        dest="ui",
        action="store_false",
        help="turn off the web UI at / and /docs",
    )
    server.add_argument(
        "--stream-secret",
        metavar="SECRET",
        help="secret for event ids, the same for all servers that resume each other's streams; set it as "
        "JAXGEN_STREAM_SECRET, because ps shows flags (default: from the caller's API key, or random without keys)",
    )
    server.add_argument(
        "--stream-event-ids",
        action="store_true",
        help="give all streams event ids, with which a broken stream can be resumed (default: only on request)",
    )
    server.add_argument(
        "--shutdown-timeout", type=float, default=30.0, help="seconds that running requests get after SIGTERM"
    )


def _add_log(log: Any) -> None:
    log.add_argument("--log-format", choices=FORMATS, default="plain", help="format of log lines on standard error")
    log.add_argument(
        "--log-level", choices=LEVELS, default="info", help="debug: also log probes; warning: log no requests"
    )
    log.add_argument("--log-prompts", action="store_true", help="log the text of prompts")
    log.add_argument(
        "--max-log-len",
        type=int,
        default=DEFAULT_CONFIG.log.max_log_len,
        help="maximum characters of a prompt in the log, with --log-prompts",
    )
    log.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="OpenTelemetry collector that gets a span for each request, http://HOST:4318/v1/traces (needs the extra "
        "otel)",
    )


def _add_browsers_and_tls(parser: CommandLine) -> None:
    tls = parser.add_argument_group("tls")
    tls.add_argument(
        "--ssl-certfile", type=Path, metavar="FILE", help="PEM file with the certificate and its chain; turns on HTTPS"
    )
    tls.add_argument(
        "--ssl-keyfile", type=Path, metavar="FILE", help="PEM file with the private key (default: in --ssl-certfile)"
    )
    tls.add_argument(
        "--ssl-ca-certs",
        type=Path,
        metavar="FILE",
        help="PEM file with certificate authorities; clients must present a certificate that one of them signed",
    )
    cors = parser.add_argument_group("cors")
    cors.add_argument(
        "--allowed-origins",
        action="append",
        metavar="ORIGIN",
        help="origin whose web pages may call the server, scheme://host:port, or *; may be repeated (default: none)",
    )
    cors.add_argument(
        "--allowed-hosts",
        action="append",
        metavar="NAME",
        help="host name that a server without keys accepts, besides localhost and addresses: NAME, *.NAME or *; may be "
        "repeated (default: any name; on loopback, only localhost and addresses)",
    )
    cors.add_argument(
        "--allowed-methods", action="append", metavar="METHOD", help="HTTP method that those pages may use (default: *)"
    )
    cors.add_argument(
        "--allowed-headers", action="append", metavar="HEADER", help="header that those pages may send (default: *)"
    )
    cors.add_argument("--allow-credentials", action="store_true", help="let those pages send cookies and certificates")


def port(text: str) -> int:
    """Parse a port. Raises ArgumentTypeError, also for a URL, as in a pod next to a Kubernetes service called
    jaxgen."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port: Kubernetes sets JAXGEN_PORT like this for a service called jaxgen; give the pod "
            "enableServiceLinks: false, or the server --port"
        )
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_PORT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid port: write a number from 0 (any free one) to {MAX_PORT}"
        )
    return number


def _root_path(text: str) -> str:
    return text.rstrip("/")


def fill_in_address(parser: CommandLine, args: Any) -> None:
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
    check_parsers(args.tool_call_parser, args.reasoning_parser)
    return ServerConfig(
        limits=limits_of(Limits, args),
        queue=limits_of(Queue, args),
        connections=limits_of(Connections, args),
        batches=limits_of(Batches, args, batch_dir=args.batch_dir),
        responses=limits_of(Responses, args),
        availability=limits_of(Availability, args),
        answers=Answers(
            tool_call_parser=args.tool_call_parser,
            reasoning_parser=args.reasoning_parser,
            structured_additional_properties=args.structured_additional_properties,
            stream_secret=args.stream_secret,
            stream_event_ids=args.stream_event_ids,
            seed=args.seed,
        ),
        access=Access(
            api_keys=api_keys(args.api_key or ()),
            api_key_file=args.api_key_file,
            public_metrics=args.public_metrics,
            allowed_hosts=tuple(args.allowed_hosts or ()),
            cors=cors_of(args),
        ),
        proxy=Proxy(root_path=args.root_path or "", forwarded_allow_ips=args.forwarded_allow_ips),
        log=Log(log_prompts=args.log_prompts, max_log_len=args.max_log_len),
        service_classes=parse_classes(args.service_class or (), args.inter_token_target),
        ui=args.ui,
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
