"""The command: which peers are measured, how often, and what becomes of the results."""

import argparse
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from math import inf, nan
from pathlib import Path

from jaxgen.hardware.device_info import this_cpu
from scripts.page.markdown import write_page
from scripts.peers.comparison import Comparison
from scripts.peers.jaxgen import Jaxgen
from scripts.peers.llama_cpp import LlamaCpp
from scripts.peers.load import Times
from scripts.peers.loads import LOADS
from scripts.peers.loads.agents import Agents
from scripts.peers.loads.forms import FORMS
from scripts.peers.openvino import OpenVino
from scripts.peers.peer import Peer, PeerError, Site
from scripts.peers.records import SERVER, Records
from scripts.peers.shapes import CLIENTS, DEFAULT, FORMATS, Format, Shape
from scripts.peers.transformers import Transformers
from scripts.peers.vllm import Vllm

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Jaxgen(),
        OpenVino("OpenVINO GenAI", "`ContinuousBatchingPipeline` with Dynamic SplitFuse; small server", True),
        OpenVino("OpenVINO GenAI u8 KV", "the same with KV in 8 bits, which is OpenVINO's default", True, "u8"),
        OpenVino("OpenVINO GenAI prompt-first", "as the first, with `dynamic_split_fuse=False`", False),
        Vllm(),
        LlamaCpp(),
        Transformers("transformers continuous", "continuous batching, 256 tokens a step; small server", "continuous"),
        Transformers("transformers static", "`generate` of all that wait; small server", "static"),
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every peer was measured in every round, else 1; 2 for results of another machine or shape."""
    args = _options(argv)
    kind = LOADS[args.load]
    if args.shape not in kind.shapes:
        print(f"scripts.peers: --load {args.load} has the shapes {', '.join(kind.shapes)}", file=sys.stderr)
        return 2
    shape = kind.shapes[args.shape]
    turns = _turns(args, shape)
    if not turns:
        print("scripts.peers: none of --peers computes one of --formats", file=sys.stderr)
        return 2
    results = args.results or shape.results
    records = Records.read(results)
    if not args.page_only:
        times = Times(args.seconds or shape.seconds, args.warmup or shape.warmup, shape.patience)
        site = Site(args.work_dir.resolve(), args.threads, shape.name)
        comparison = Comparison(records, site, kind.loads(args), times)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and with it the server that runs
        try:
            comparison.run(turns, args.rounds)
        except PeerError as error:
            print(f"scripts.peers: {error}", file=sys.stderr)
            return 2
    page = args.page or (shape.page if results == shape.results else results.with_suffix(".md"))
    write_page(kind.sections(records, shape), page)
    failures = records.failures()
    for failure in failures:
        where = ", ".join(str(failure[name]) for name in SERVER)
        print(f"FAILED: {where}: {failure['error'].splitlines()[0]}")
    print(f"results: {results}; page: {page}")
    return 1 if failures else 0


def _turns(args: argparse.Namespace, shape: Shape) -> list[tuple[Peer, Format]]:
    """Each peer in each format that it computes, in the order of a round."""
    turns = []
    for wanted in args.formats or shape.formats:
        for text in args.peers or shape.peers:
            name, _, only = text.partition(":")
            if wanted in PEERS[name].formats and only in ("", wanted):
                turns.append((PEERS[name], FORMATS[wanted]))
    return turns


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.peers",
        description="Measure jaxgen and other servers in turn: the same weights, load and machine.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    shapes = list(dict.fromkeys(name for kind in LOADS.values() for name in kind.shapes))
    work_dir = Path(tempfile.gettempdir()) / "peers-work"
    parser.add_argument(
        "--load",
        choices=LOADS,
        default=CLIENTS,
        help="clients in loops, agents' conversations, or answers under schemas",
    )
    parser.add_argument("--shape", choices=shapes, default=DEFAULT, help="the defaults of what follows depend on it")
    parser.add_argument("--work-dir", type=Path, default=work_dir, help="environments, weights and logs; used again")
    parser.add_argument(
        "--results",
        type=Path,
        help="lines of JSON are added as they come; what the file has of the same loads is not measured again",
    )
    parser.add_argument("--page", type=Path, help="made of all results; default: the shape's, of others beside them")
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    parser.add_argument("--peers", type=_peers, help="comma-separated; NAME:FORMAT is one in that format alone")
    parser.add_argument("--formats", type=_names(FORMATS), help="comma-separated")
    parser.add_argument("--clients", type=_each(_whole), help="closed loops, comma-separated; '': none")
    parser.add_argument("--long-clients", type=_whole, help="clients beside long prompts; 0: no such load")
    parser.add_argument("--long-every", type=_positive, default=1.0, help="seconds after which a long prompt comes")
    parser.add_argument("--agents", type=_each(_conversations), help="agents x turns, such as 1x12,8x12~40")
    parser.add_argument("--forms", type=_names(FORMS), help="of answers under schemas, comma-separated")
    parser.add_argument("--rates", type=_each(_positive), default=[], help="open loops, requests/s, comma-separated")
    parser.add_argument("--rounds", type=_whole, default=3, help="in which all peers take turns")
    parser.add_argument("--seconds", type=_positive, help="of each load that are measured")
    parser.add_argument("--warmup", type=_positive, help="of the same load before these, seconds at least")
    parser.add_argument("--threads", type=_whole, default=this_cpu().num_cores, help="and cores of every server")
    return parser.parse_args(argv)


def _peers(text: str) -> list[str]:
    result = text.split(",")
    _known(PEERS, [one.partition(":")[0] for one in result])
    _known(FORMATS, [one.partition(":")[2] for one in result if ":" in one])
    return result


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    return lambda text: _known(known, text.split(","))


def _known(known: Iterable[str], names: list[str]) -> list[str]:
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def _each[T](parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    return lambda text: [parse(part) for part in text.split(",") if text]


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def _conversations(text: str) -> Agents:
    if not (match := re.fullmatch(r"([1-9]\d*)x(\d+)(~\d+)?", text, re.ASCII)) or int(match[2]) < 2:
        raise argparse.ArgumentTypeError(
            f"must be agents x turns, 2 or more, such as 8x12, or 8x12~40 for answers that differ, not {text!r}"
        )
    load = Agents(int(match[1]), int(match[2]), spread=int((match[3] or "~0")[1:]))
    if load.spread >= load.answer:
        raise argparse.ArgumentTypeError(f"must have answers that differ by less than {load.answer}, not {text!r}")
    return load


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 0.0 < value < inf:
        raise argparse.ArgumentTypeError(f"must be a number of more than 0, not {text!r}")
    return value
