"""Parse the flags of ``jaxgen benchmark``; an error names the flag of an invalid value."""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import configargparse

from jaxgen.server.benchmark.metrics import EMA_SPAN, SLAS, TTFT_RATE
from jaxgen.server.benchmark.requests import FIRST_ID, STAGGER_SECONDS, default_max
from jaxgen.terminal.command_line import CommandLine

DEFAULT_CLIENTS = (1, 4, 16)
OPEN_REQUESTS = 64


def parse_options(argv: Sequence[str]) -> Any:
    """Return the flags as a namespace, with defaults. Exits with 2 and one message for invalid values."""
    parser = make_parser()
    args = parser.parse_args(argv)
    args.clients = args.clients or (() if args.rates else DEFAULT_CLIENTS)
    args.rates = args.rates or ()
    args.prompt_max = args.prompt_max or default_max(args.prompt_mean)
    args.output_max = args.output_max or default_max(args.output_mean)
    if args.prompt_kind == "text" and args.tokenizer is None:
        parser.error("--prompt-kind text needs --tokenizer, the directory of the model's tokenizer")
    if args.prompt_kind == "ids" and args.vocab_size <= FIRST_ID:
        parser.error(f"--vocab-size must be more than {FIRST_ID}, not {args.vocab_size}")
    if args.plot is not None and not args.plot.parent.is_dir():
        parser.error(f"--plot {args.plot}: there is no directory {args.plot.parent}")
    return args


def settings_of(args: Any) -> dict[str, Any]:
    """Return the flags for the JSON line: all but the API key and the paths of the results."""
    left_out = ("api_key", "output", "plot")
    return {name: str(v) if isinstance(v, Path) else v for name, v in vars(args).items() if name not in left_out}


def make_parser() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog="jaxgen benchmark",
        usage="%(prog)s [options]",
        description="Measure any OpenAI-compatible server at /v1/completions, with DeepSpeed-FastGen's definitions.",
    )
    _add_server(parser.add_argument_group("server"))
    _add_load(parser.add_argument_group("load"))
    _add_requests(parser.add_argument_group("requests"))
    _add_figures(parser.add_argument_group("figures"))
    return parser


def _add_server(group: Any) -> None:
    group.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="as given to an OpenAI client")
    group.add_argument("--model", help="model to ask for (default: the only one at /v1/models)")
    group.add_argument("--api-key", env_var="JAXGEN_API_KEY", help="better set as JAXGEN_API_KEY: ps shows flags")
    group.add_argument(
        "--usage",
        choices=("continuous", "final", "none"),
        default="continuous",
        help="token counts to ask the server for: with every chunk, at the end, or none (then chunks are counted)",
    )


def _add_load(group: Any) -> None:
    group.add_argument(
        "--clients",
        type=_list_of(_whole(1)),
        help="closed loops to run one after the other, clients in each (default: 1,4,16 if no --rates)",
    )
    group.add_argument(
        "--rates", type=_list_of(_positive), help="open loops with Poisson arrivals, requests/s in each, after these"
    )
    group.add_argument(
        "--requests",
        type=_whole(1),
        help=f"requests of each loop (default: 4 * clients + 32 closed, {OPEN_REQUESTS} open)",
    )
    group.add_argument(
        "--warmup", type=_whole(0), default=1, help="requests of each client before measuring (open: all)"
    )
    group.add_argument(
        "--stagger", type=_not_negative, default=STAGGER_SECONDS, help="clients start within clients * this, seconds"
    )
    group.add_argument("--timeout", type=_positive, default=300.0, help="most seconds of a request; then it is aborted")
    group.add_argument(
        "--max-seconds", type=_positive, default=600.0, help="most seconds of each loop, and of each warm-up"
    )


def _add_requests(group: Any) -> None:
    group.add_argument("--prompt-mean", type=_positive, default=512.0, help="tokens; standard deviation is 30 %% of it")
    group.add_argument("--prompt-max", type=_whole(1), help="longest prompt, tokens (default: 2 * mean)")
    group.add_argument("--output-mean", type=_positive, default=64.0, help="tokens; standard deviation is 30 %% of it")
    group.add_argument("--output-max", type=_whole(1), help="longest answer, tokens (default: 2 * mean)")
    group.add_argument(
        "--shared-prefix", type=_whole(0), default=0, help="tokens put before every prompt, the same ones"
    )
    group.add_argument("--prompt-kind", choices=("ids", "text"), default="ids", help="random token ids, or words")
    group.add_argument("--vocab-size", type=_whole(1), default=256, help="of prompts of ids: these are below it")
    group.add_argument("--tokenizer", type=Path, help="of prompts of text: directory of the model's tokenizer")
    group.add_argument("--temperature", type=_not_negative, default=1.0)
    group.add_argument("--top-p", type=_positive, default=1.0)
    group.add_argument(
        "--ignore-eos",
        action=configargparse.argparse.BooleanOptionalAction,
        default=True,
        help="ask for answers of exactly the drawn length; not every server knows the field",
    )
    group.add_argument("--service-tier", help="class of service to ask for; not every server knows the field")
    group.add_argument("--seed", type=_whole(0), default=42, help="of lengths, prompts and arrivals")


def _add_figures(group: Any) -> None:
    group.add_argument("--slas", type=_list_of(_positive), default=SLAS, help="tokens/s of effective throughput")
    group.add_argument(
        "--ttft-rate", type=_positive, default=TTFT_RATE, help="TTFT may be prompt tokens / this, seconds"
    )
    group.add_argument("--ema-span", type=_positive, default=EMA_SPAN, help="tokens, of the moving average")
    group.add_argument("--output", type=Path, help="file to which a JSON line is appended")
    group.add_argument("--plot", type=Path, help="PNG to write; needs matplotlib (extra bench)")


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or int(text) < least:
            raise configargparse.ArgumentTypeError(f"must be a whole number of {least} or more, not {text!r}")
        return int(text)

    return parse


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0.0:
        raise configargparse.ArgumentTypeError("must be more than 0")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0.0:
        raise configargparse.ArgumentTypeError(f"must be a number of 0 or more, not {text!r}")
    return value


def _list_of[T](parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def parse_all(text: str) -> tuple[T, ...]:
        return tuple(parse(part) for part in text.split(","))

    return parse_all
