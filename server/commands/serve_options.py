"""Parse the flags of ``jaxgen serve``, from the command line, the environment or a file, in this order."""

import argparse
from pathlib import Path
from typing import Any

from jaxgen.core.config import DTYPES, KERNEL_CHOICES, KV_RESIDENCIES, OFFLOAD_POLICIES, EngineOptions
from jaxgen.core.errors import ConfigError
from jaxgen.core.host_dtype import HOST_DTYPES
from jaxgen.core.model_info import POOLING_CHOICES
from jaxgen.server.commands.access import api_keys, host
from jaxgen.server.commands.service_classes import parse_classes
from jaxgen.server.config import DEFAULT_CONFIG, TOOL_CALL_PARSERS, Cors, ServerConfig
from jaxgen.server.log import FORMATS, LEVELS
from jaxgen.terminal.command_line import CommandLine
from jaxgen.text.named_templates import TEMPLATE_NAMES

MAX_PORT = 65535
LIMITS = {
    "max_body_bytes": "longest body",
    "max_prompts": "most prompts",
    "max_inputs": "most inputs of one request for embeddings",
    "max_messages": "most messages of a conversation, or items of one at /v1/responses",
    "max_tools": "most tools of one request",
    "max_n": "largest n and best_of",
    "max_choices": "most completions, prompts x best_of",
    "max_stop_length": "longest stop string, characters",
    "max_stop_token_ids": "most stop_token_ids",
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
    "max_stored_bytes": "bytes of a caller's files beyond which none is taken",
    "max_uploads": "most uploads at once; beyond, 429",
    "max_batches": "most batches of a caller that have not ended",
    "max_batch_lines": "most lines of a batch",
    "max_batch_lines_in_flight": "lines of all batches that are worked on at once",
}
"""Fields of ServerConfig with a flag of the same name."""

TIMES = {
    "header_timeout": "seconds a TLS handshake and a request's head may take to arrive; beyond, 408",
    "write_timeout": "seconds after which a connection ends whose caller reads nothing",
    "body_timeout": "seconds a body may take to arrive, beside one for every 16 KiB; beyond, 408",
    "request_timeout": "seconds a completion may take from its arrival; beyond, 504 (default: as long as it takes)",
}
"""Flags in seconds, whose fields in ServerConfig end in _s."""


def make_parser(command: str = "serve") -> CommandLine:
    """Return the parser. Every flag can also be set by a variable JAXGEN_<FLAG>, and in the file of ``--config``."""
    parser = CommandLine(
        prog=f"jaxgen {command}",
        description="Serve a model at /v1/completions, /v1/chat/completions and /v1/embeddings.",
        auto_env_var_prefix="JAXGEN_",
    )
    parser.add_argument("--config", is_config_file=True, metavar="FILE", help="YAML with these flags, without dashes")
    model = parser.add_argument_group("model")
    model.add_argument("--model", help="directory or hub id; without it the embedded default")
    model.add_argument("--served-model-name", help="name in the API (default: as given to --model)")
    model.add_argument(
        "--dtype",
        choices=("auto", *DTYPES),
        default="auto",
        help="auto: the checkpoint's own, or float32 where the device computes that faster",
    )
    model.add_argument(
        "--chat-template",
        metavar="NAME_OR_FILE",
        help=f"{', '.join(TEMPLATE_NAMES)}, which ship with jaxgen, or a file with a Jinja template (default: the "
        "model's own)",
    )
    model.add_argument(
        "--tool-call-parser",
        choices=TOOL_CALL_PARSERS,
        default="auto",
        help="how the model writes calls of tools; auto: as its chat template shows",
    )
    model.add_argument(
        "--structured-additional-properties",
        action="store_true",
        help="objects of a JSON schema may have other keys than its properties, as JSON Schema says where a schema "
        "does not forbid it (default: they may not)",
    )
    model.add_argument(
        "--pooling",
        choices=POOLING_CHOICES,
        default="auto",
        help="which hidden states embed a text: their mean, the last, or the first (cls); auto: as the model's "
        "modules.json says, else the mean",
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--kernels",
        choices=KERNEL_CHOICES,
        default="auto",
        help="auto: the fastest that prove right on the device, those for GPUs in a process of their own and once; "
        "prove: the same with a new proof; unproven: those for GPUs without one; xla: XLA's everywhere",
    )
    engine.add_argument("--max-model-len", type=int, help="longest prompt + answer, tokens (default: what fits)")
    engine.add_argument(
        "--token-budget",
        "--max-num-batched-tokens",
        type=int,
        help="tokens in every step (default: as jaxgen tune measured, else a rule for the device)",
    )
    engine.add_argument("--max-num-seqs", type=int, help="most sequences in a step")
    engine.add_argument("--block-size", type=int, help="tokens in a block of the KV cache")
    engine.add_argument("--num-blocks", type=int, help="blocks in the KV cache (default: what fits)")
    engine.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, help="share of an accelerator's memory to use"
    )
    engine.add_argument(
        "--enable-prefix-caching",
        dest="prefix_caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the KV of full blocks for later requests that begin alike",
    )
    engine.add_argument(
        "--kv-offloading-size",
        type=float,
        default=0.0,
        help="GiB of host memory for KV blocks that leave the device, or for all (0: none)",
    )
    engine.add_argument(
        "--kv-offload-policy",
        choices=OFFLOAD_POLICIES,
        default="plan",
        help="how they come back: as measured rates say, all copied, or all computed again",
    )
    engine.add_argument(
        "--kv-residency",
        choices=KV_RESIDENCIES,
        default="device",
        help="where the KV cache is; host: in --kv-offloading-size GiB of host memory, and each step brings it to the "
        "device layer by layer; auto: there if the device cannot hold the longest sequence",
    )
    engine.add_argument(
        "--kv-host-dtype",
        choices=HOST_DTYPES,
        default="auto",
        help="auto: as on the device, to the bit; int8, int4: quantised by groups, with an error",
    )
    engine.add_argument(
        "--kv-offload-inputs",
        action="store_true",
        help="keep layer inputs too, from which K and V are made again: fewer bytes to copy back where attention has "
        "as many KV heads as heads, more memory on device and host",
    )
    engine.add_argument(
        "--background-tokens",
        type=int,
        help="most tokens of batches in a step that has other requests (default: 0 on CPUs, else what these leave "
        "over)",
    )
    engine.add_argument(
        "--single-shape",
        action="store_true",
        help="one program for all steps, even where a narrow one for decodes is faster and gives the same bits",
    )
    engine.add_argument("--seed", type=int, help="makes requests without a seed repeatable, in order of arrival")
    cache = parser.add_argument_group("cache")
    cache.add_argument("--cache-dir", type=Path, help="keeps what speeds up the next start (default: the user's cache)")
    cache.add_argument(
        "--no-compilation-cache",
        dest="compilation_cache",
        action="store_false",
        help="compile at every start, and keep no compiled program",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", type=host, default="127.0.0.1")
    server.add_argument("--port", type=port, default=8000)
    server.add_argument(
        "--api-key",
        action="append",
        help="asked of every request; may be repeated; better set as JAXGEN_API_KEY, since ps shows flags",
    )
    server.add_argument(
        "--api-key-file", type=Path, help="further keys, one a line; read again when it changes, without a restart"
    )
    server.add_argument(
        "--service-class",
        action="append",
        metavar="'NAME ttft=S prompt-rate=T inter-token=S late=serve'",
        help="class that service_tier may name, and its targets: seconds to the first token, one more for every T "
        "tokens of the prompt, and between tokens; what would be late is refused (429), or served; may be repeated",
    )
    server.add_argument(
        "--forwarded-allow-ips",
        default=DEFAULT_CONFIG.forwarded_allow_ips,
        metavar="ADDRESSES",
        help="proxies in front, addresses and networks with commas between them, or *: their X-Forwarded-For and "
        "X-Forwarded-Proto are believed",
    )
    server.add_argument(
        "--batch-dir", type=Path, help="keeps files and batches (default: none, and their routes answer 404)"
    )
    log = parser.add_argument_group("log")
    log.add_argument("--log-format", choices=FORMATS, default="plain", help="of lines on standard error")
    log.add_argument("--log-level", choices=LEVELS, default="info", help="debug: probes too; warning: no requests")
    log.add_argument("--log-prompts", action="store_true", help="the text of prompts too, in a request's line")
    log.add_argument(
        "--otlp-traces-endpoint",
        help="URL of an OpenTelemetry collector, http://HOST:4318/v1/traces: a span for each request goes there (needs "
        "the extra otel)",
    )
    limits = parser.add_argument_group("limits")
    for name, what in LIMITS.items():
        limits.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(DEFAULT_CONFIG, name), help=what)
    for name, what in TIMES.items():
        default = getattr(DEFAULT_CONFIG, f"{name}_s")
        limits.add_argument(f"--{name.replace('_', '-')}", type=float, default=default, help=what)
    server.add_argument("--shutdown-timeout", type=float, default=30.0, help="seconds running requests get at SIGTERM")
    _add_browsers_and_tls(parser)
    return parser


def _add_browsers_and_tls(parser: CommandLine) -> None:
    tls = parser.add_argument_group("tls")
    tls.add_argument("--ssl-certfile", type=Path, help="PEM certificate, and its chain: serve https")
    tls.add_argument("--ssl-keyfile", type=Path, help="its PEM key (default: in --ssl-certfile)")
    tls.add_argument("--ssl-ca-certs", type=Path, help="callers must show a certificate that one of these signed")
    cors = parser.add_argument_group("cors")
    cors.add_argument(
        "--allowed-origins",
        action="append",
        help="origin whose pages may call from a browser, scheme://host:port, or *; may be repeated (default: none)",
    )
    cors.add_argument("--allowed-methods", action="append", help="method that they may use (default: *)")
    cors.add_argument("--allowed-headers", action="append", help="header that they may send (default: *)")
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


def engine_options(args: Any) -> EngineOptions:
    """Return the engine's options from the flags."""
    names = EngineOptions.__dataclass_fields__
    return EngineOptions(**{name: getattr(args, name) for name in names})


def server_config(args: Any) -> ServerConfig:
    """Return the server's configuration from the flags. Raises ConfigError."""
    limits = {name: getattr(args, name) for name in LIMITS}
    times = {f"{name}_s": getattr(args, name) for name in TIMES}
    return ServerConfig(
        api_keys=api_keys(args.api_key or ()),
        api_key_file=args.api_key_file,
        batch_dir=args.batch_dir,
        log_prompts=args.log_prompts,
        forwarded_allow_ips=args.forwarded_allow_ips,
        cors=cors_of(args),
        service_classes=parse_classes(args.service_class or ()),
        tool_call_parser=args.tool_call_parser,
        structured_additional_properties=args.structured_additional_properties,
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
