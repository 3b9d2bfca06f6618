"""The command ``python -m scripts.scaling``."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from jaxgen.hardware.device_info import this_cpu
from jaxgen.terminal.extras import name_extras_at_the_end
from scripts.peers.load import Window
from scripts.peers.peer import PeerError, Site
from scripts.scaling.fleet import ScalingError
from scripts.scaling.page import LIVE
from scripts.simulation.replicas.study import SIZES

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHAPE, DTYPE = "88m", "bfloat16"
STUDIES = ("pinned", "sleeping", "page")


def main(description: str | None, argv: list[str] | None = None) -> int:
    name_extras_at_the_end()
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--smg", type=Path, metavar="COMMAND", help="default: smg of PATH")
    parser.add_argument("--warmup", type=float, default=12.0, help="seconds before each window; default: 12")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each window; default: 20")
    parser.add_argument("--rounds", type=int, default=2, help="of pinned replicas; default: 2")
    parser.add_argument("--most", type=int, choices=SIZES, default=SIZES[-1], help="sleeping processes; default: 16")
    work_dir = Path(tempfile.gettempdir()) / "scaling-work"
    parser.add_argument("--work-dir", type=Path, default=work_dir, help="weights and logs; used again")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="DIR", help="of the page; default: docs")
    args = parser.parse_args(argv)
    if args.study != "page":
        for name in ("warmup", "seconds", "rounds"):
            if getattr(args, name) <= 0:
                parser.error(f"--{name} must be more than 0, not {getattr(args, name):g}")
        found = args.smg or shutil.which("smg")
        if found is None or not Path(found).is_file():
            parser.error(f"--smg {args.smg or 'smg'} is no command: pip install smg, and name its command")
        args.smg = Path(found).absolute()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and with it the servers that run
        try:
            _measure(args)
        except (ScalingError, PeerError) as error:
            print(f"scripts.scaling: {error}", file=sys.stderr)
            return 1
    from scripts.simulation.replicas.page import write_page  # it wants matplotlib

    write_page(args.out)
    return 0


def _measure(args: argparse.Namespace) -> None:
    from scripts.scaling.studies import in_virtual_time, pinned, sleeping  # they want aiohttp

    def say(line: str) -> None:
        print(line, flush=True)

    logs = args.work_dir.resolve() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    window = Window(args.warmup, args.warmup + args.seconds)
    about = {"machine": this_cpu().title, "warmup_s": args.warmup, "window_s": args.seconds}
    if args.study == "pinned":
        model = Site(args.work_dir.resolve(), 2, SHAPE).checkpoint(DTYPE)
        points = pinned(model, args.smg, logs, window, args.rounds, say)
        found = about | {"model": f"{SHAPE} {DTYPE}", "points": points}
    else:
        sizes = [size for size in SIZES if size <= args.most]
        found = about | {"points": sleeping(args.smg, logs, window, sizes, say) + in_virtual_time(window, sizes)}
    path = args.out / "results" / LIVE
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {args.study: found}, indent=1) + "\n")
