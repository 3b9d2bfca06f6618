"""The command: which peers are measured, how often, and what becomes of the results."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from math import inf, nan
from pathlib import Path

from jaxgen.hardware.device_info import this_cpu
from scripts.peers.comparison import Comparison
from scripts.peers.jaxgen import Jaxgen
from scripts.peers.llama_cpp import LlamaCpp
from scripts.peers.load import Cell
from scripts.peers.openvino import OpenVino
from scripts.peers.page import write_page
from scripts.peers.peer import DTYPES, ROOT, Peer, PeerError, Site
from scripts.peers.records import SERVER, Records
from scripts.peers.transformers import Transformers
from scripts.peers.vllm import Vllm

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Jaxgen(),
        Jaxgen("jaxgen 128", "with `--token-budget 128`", ("--token-budget", "128")),
        Jaxgen("jaxgen 256", "with `--token-budget 256`, OpenVINO's default", ("--token-budget", "256")),
        OpenVino("OpenVINO split-fuse", "`ContinuousBatchingPipeline`; minimal server", True),
        OpenVino("OpenVINO split-fuse u8 KV", "the same with KV in 8 bits, which is OpenVINO's default", True, "u8"),
        OpenVino("OpenVINO prompt-first", "as the first, with `dynamic_split_fuse=False`", False),
        Vllm(),
        LlamaCpp(),
        Transformers("transformers continuous", "continuous batching, 256 tokens a step; minimal server", "continuous"),
        Transformers("transformers static", "`generate` of all that wait; minimal server", "static"),
    )
}
DOCS = ROOT / "docs"
RESULTS = DOCS / "results" / "peers.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every peer was measured in every round, else 1; 2 for results of another machine."""
    args = _options(argv)
    records = Records.read(args.results)
    if not args.page_only:
        cells = [Cell(clients) for clients in args.clients]
        if args.long_clients:
            cells.append(Cell(args.long_clients, long_prompts=True))
        site = Site(args.work_dir.resolve(), args.threads)
        comparison = Comparison(records, site, cells, warmup=args.warmup, seconds=args.seconds)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and with it the server that runs
        try:
            comparison.run([PEERS[name] for name in args.peers], args.dtypes, args.rounds)
        except PeerError as error:
            print(f"scripts.peers: {error}", file=sys.stderr)
            return 2
    page = args.page or (DOCS / "peers.md" if args.results == RESULTS else args.results.with_suffix(".md"))
    write_page(records, page)
    failures = records.failures()
    for failure in failures:
        where = ", ".join(str(failure[name]) for name in SERVER)
        print(f"FAILED: {where}: {failure['error'].splitlines()[0]}")
    print(f"results: {args.results}; page: {page}")
    return 1 if failures else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.peers",
        description="Measure jaxgen and other servers in turn: the same weights, load and machine.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    work_dir = Path(tempfile.gettempdir()) / "peers-work"
    parser.add_argument("--work-dir", type=Path, default=work_dir, help="environments, weights and logs; used again")
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        help="lines of JSON are added as they come; what the file has of the same loads is not measured again",
    )
    parser.add_argument("--page", type=Path, help="made of all results; default: docs/peers.md, of others beside them")
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    parser.add_argument("--peers", type=_names(PEERS), default=list(PEERS), help="comma-separated")
    parser.add_argument("--dtypes", type=_names(DTYPES), default=list(DTYPES), help="comma-separated")
    parser.add_argument("--clients", type=_clients, default=[1, 4, 16], help="closed loops, comma-separated")
    parser.add_argument("--long-clients", type=_whole, default=4, help="clients beside long prompts; 0: no such load")
    parser.add_argument("--rounds", type=_whole, default=3, help="in which all peers take turns")
    parser.add_argument("--seconds", type=_positive, default=10.0, help="of each load that are measured")
    parser.add_argument("--warmup", type=_positive, default=4.0, help="of the same load before these, seconds at least")
    parser.add_argument("--threads", type=_whole, default=this_cpu().num_cores, help="and cores of every server")
    return parser.parse_args(argv)


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return names

    return parse


def _clients(text: str) -> list[int]:
    return [_whole(part) for part in text.split(",")]


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not 0.0 < value < inf:
        raise argparse.ArgumentTypeError(f"must be a number of more than 0, not {text!r}")
    return value
