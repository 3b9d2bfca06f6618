"""The command: which servers are measured, for how long, and what becomes of the results."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scripts.gpu.peer import servers
from scripts.gpu.peer.page import sections
from scripts.gpu.peer.plan import CALL_SECONDS, plan
from scripts.gpu.peer.run import Run, machine
from scripts.gpu.peer.servers import Server
from scripts.gpu.peer.settings import DRY, FULL, LONG, Settings, closed_loops
from scripts.page.markdown import write_page
from scripts.peers.peer import SERVED_NAME, PeerError
from scripts.peers.records import Records
from scripts.peers.shapes import DOCS

RESULTS, PAGE = DOCS / "results" / "peers-gpu.jsonl", DOCS / "results" / "peers-gpu.md"
INCOMPLETE = 3


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all was measured; 2 for what cannot be run; 3 when some of it is missing."""
    began = time.monotonic()
    args = _options(argv)
    try:
        if args.page_only:
            return _write(Records.read(args.results), args)
        settings = _settings(args)
        compared = _servers(args, settings)
        if args.plan:
            print(plan(compared, (settings.warm_up, *settings.loads), args.rounds, args.seconds))
            return 0
        return _run(args, settings, compared, began)
    except PeerError as error:
        print(f"scripts.gpu.peer: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace, settings: Settings, compared: list[Server], began: float) -> int:
    records = Records.read(args.results)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    here = machine()
    if here["gpu"] is None and not args.dry_run:
        raise PeerError("nvidia-smi finds no GPU here; --dry-run runs everything on the CPU in tiny sizes")
    here |= {"model": args.model.resolve().name if args.model else settings.about, "dry_run": args.dry_run}
    here |= {"weights": "of a checkpoint" if args.model else "random, drawn by each server"}
    known = records.of_kind("machine")
    if known and not records.of_kind("machine", **here):
        raise PeerError(
            f"{args.results} is of {known[-1]['gpu']} and {known[-1]['model']}: give --results another file"
        )
    if not known:
        records.add("machine", **here, started=time.strftime("%Y-%m-%d", time.gmtime()))
    print(plan(compared, (settings.warm_up, *settings.loads), args.rounds, args.seconds), flush=True)
    if args.model is None:
        settings.write_model(_model(args))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and with it the server that runs
    run = Run(records, settings.warm_up, settings.loads, began + args.seconds, args.logs or args.work_dir / "logs")
    complete = run.go(compared, args.rounds, same_weights=args.model is not None)
    return _write(records, args) or (0 if complete else INCOMPLETE)


def _write(records: Records, args: argparse.Namespace) -> int:
    page = args.page or (PAGE if args.results == RESULTS else args.results.with_suffix(".md"))
    write_page(sections(records), page)
    print(f"results: {args.results}; page: {page}")
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    """Return what is measured. Raises PeerError."""
    if args.dry_run and args.clients:
        raise PeerError("--dry-run has clients of its own: leave --clients out")
    if args.dry_run:
        return DRY
    return replace(FULL, loads=(*closed_loops(args.clients), LONG)) if args.clients else FULL


def _servers(args: argparse.Namespace, settings: Settings) -> list[Server]:
    """Return the servers in their order. Raises PeerError for flags that do not go together."""
    chosen = [flag for flag in ("peer_python", "peer_command", "peer_url") if getattr(args, flag)]
    if len(chosen) > 1:
        raise PeerError("--peer-python, --peer-command and --peer-url exclude each other")
    if not chosen and not args.dry_run and not args.plan and "peer" in args.servers:
        raise PeerError("give --peer-python, --peer-command or --peer-url, or --servers jaxgen")
    if args.peer_url and "jaxgen" in args.servers:
        raise PeerError("the server at --peer-url holds the device's memory: give --servers peer, and jaxgen later")
    model = _model(args)
    load_format = "auto" if args.model else "dummy"
    result = []
    if "jaxgen" in args.servers:
        result.append(servers.jaxgen(settings, model, args.work_dir.resolve(), load_format, _flags(args.jaxgen_flags)))
    if "peer" in args.servers:
        result.append(_peer(args, settings, model, load_format))
    return result


def _model(args: argparse.Namespace) -> Path:
    folder: Path = args.model or args.work_dir / "model"
    return folder.resolve()


def _peer(args: argparse.Namespace, settings: Settings, model: Path, load_format: str) -> Server:
    env = dict(args.peer_env)
    if args.peer_url:
        return servers.by_url(args.peer_url, args.peer_name, args.peer_model, args.peer_usage)
    if args.peer_command:
        return servers.by_command(args.peer_command, args.peer_name, model, args.peer_model, args.peer_usage, env)
    if args.dry_run and not args.peer_python:
        return servers.fake()
    result = servers.vllm(settings, model, args.peer_python or "python", load_format, _flags(args.peer_flags), env)
    return replace(result, versions=servers.vllm_versions(args.peer_python, env)) if args.peer_python else result


def _flags(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.gpu.peer",
        description="Measure jaxgen and another server in turn on one GPU: the same model, client and load.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="print the seconds that a run takes at most, and end")
    what.add_argument("--dry-run", action="store_true", help="tiny sizes on a CPU, a fake server as the peer")
    what.add_argument("--page-only", action="store_true", help="measure nothing, write the page")
    work_dir = Path(tempfile.gettempdir()) / "gpu-peer-work"
    parser.add_argument("--results", type=Path, help="lines of JSON; what the file has is not measured again")
    parser.add_argument("--page", type=Path, help="default: next to the results")
    parser.add_argument("--work-dir", type=Path, default=work_dir, help="model, caches and logs")
    parser.add_argument("--logs", type=Path, help="default: in --work-dir")
    parser.add_argument("--seconds", type=float, default=CALL_SECONDS, help="after which the call has ended")
    parser.add_argument("--rounds", type=int, default=2, help="in which the servers take turns, as time allows")
    parser.add_argument("--clients", type=_clients, help="closed loops, such as 64,256")
    parser.add_argument("--servers", type=_names, default="jaxgen,peer", help="of jaxgen and peer, in this order")
    parser.add_argument("--model", type=Path, help="a checkpoint for all servers, whose completions are then compared")
    parser.add_argument("--jaxgen-flags", default="", help="of jaxgen serve; they become a part of its name")
    parser.add_argument("--peer-python", help="the Python that has vLLM")
    parser.add_argument("--peer-flags", default="", help="of vllm serve; they become a part of its name")
    parser.add_argument("--peer-env", action="append", type=_variable, default=[], help="NAME=VALUE; may be repeated")
    parser.add_argument("--peer-command", help="of another server, with {model}, {port} and {name} to fill in")
    parser.add_argument("--peer-url", help="of a server that runs already, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--peer-name", default="peer", help="of that server, in results")
    parser.add_argument("--peer-model", default=SERVED_NAME, help="its model's name in requests")
    parser.add_argument("--peer-usage", choices=("continuous", "final", "none"), default="continuous")
    args = parser.parse_args(argv)
    args.results = args.results or (args.work_dir / "dry-run.jsonl" if args.dry_run else RESULTS)
    return args


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {text!r}")
    return name, value


def _clients(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"must be whole numbers of 1 or more, such as 64,256, not {text!r}")
    return [int(part) for part in parts]


def _names(text: str) -> list[str]:
    names = text.split(",")
    if set(names) - {"jaxgen", "peer"}:
        raise argparse.ArgumentTypeError(f"must be jaxgen, peer or both, not {text!r}")
    return names
