"""The command ``python -m scripts.simulation``."""

import argparse
import json
import re
from pathlib import Path
from typing import Literal

from jaxgen.core.config import DTYPES, DType
from scripts.simulation.fastgen import Setting, describe, make_policies, settings
from scripts.simulation.load import read_trace
from scripts.simulation.loop import Simulation, seconds_at
from scripts.simulation.merits import simulate_setting

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = "simulation.json"
OPTIONS_OF = {"trace": ("setting", "policy"), "check": ("model", "dtype", "rounds")}
"""Options that say more of one thing to do."""


def main(description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCS, metavar="DIR", help="of the page; default: docs")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pages", action="store_true", help="simulate nothing, write the page")
    what.add_argument("--trace", type=Path, metavar="FILE", help="of requests, a line of JSON each")
    what.add_argument("--check", action="store_true", help="predict live runs of a model on this machine")
    what.add_argument("--fill", action="store_true", help="rules that fill steps: docs/fill.png")
    what.add_argument("--replicas", action="store_true", help="1 to 16 replicas behind routers: docs/scale.md")
    parser.add_argument("--setting", choices=list(settings()), help="a trace's costs and cache; default: calibrated")
    parser.add_argument("--policy", choices=("SplitFuse", "prompt-first", "static"), help="default: SplitFuse")
    parser.add_argument("--model", help="that is checked, a directory or hub id; default: the embedded one")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), help="that it is checked in; default: auto")
    parser.add_argument("--rounds", type=int, help="of live runs, 1 or more; default: 3")
    args = parser.parse_args()
    for mode, names in OPTIONS_OF.items():
        for name in names:
            if getattr(args, name) is not None and not getattr(args, mode):
                parser.error(f"--{name} goes with --{mode}")
    if args.rounds is not None and args.rounds < 1:
        parser.error(f"--rounds must be 1 or more, not {args.rounds}")
    try:
        return run(args)
    except (OSError, ValueError) as error:  # ConfigError is a ValueError
        parser.error(str(error))


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 for predictions that were not good enough."""
    if args.trace:
        show_trace(args.trace, settings()[args.setting or "calibrated"], args.policy or "SplitFuse")
        return 0
    if args.fill:
        from scripts.simulation.fill import run_study  # it wants matplotlib

        run_study(args.out)
        return 0
    if args.replicas:
        from scripts.simulation.replicas.page import write_scale_page  # it wants matplotlib
        from scripts.simulation.replicas.study import study_replicas

        study_replicas(args.out / "results", lambda line: print(line, flush=True))
        write_scale_page(args.out)
        return 0
    results = args.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    good = check(results, args.model, args.dtype or "auto", args.rounds or 3) if args.check else True
    if not (args.check or args.pages):
        simulate_all(results / RESULTS)
    if args.pages or (results / RESULTS).exists():  # a check may write where nothing was simulated
        from scripts.simulation.page import write_page  # the only one that wants matplotlib

        write_page(args.out)
    return 0 if good else 1


def show_trace(path: Path, setting: Setting, policy: str) -> None:
    simulation = Simulation(make_policies(setting)[policy], seconds_at(setting.step_time), read_trace(path))
    print(json.dumps(simulation.run().summary() | {"steps": simulation.num_steps}, indent=2))


def simulate_all(path: Path) -> None:
    found = {}
    for name, setting in settings().items():
        points = []
        for point in simulate_setting(setting):
            points.append(point)
            if point["policy"] == "static":
                print(f"{name}: {point['prompt']} + {point['output']} tokens, {point['clients']} clients", flush=True)
        found[name] = describe(setting) | {"points": points}
    path.write_text(json.dumps(found) + "\n")


def check(results: Path, model: str | None, dtype: DType | Literal["auto"], rounds: int) -> bool:
    """Whether all predictions were good enough."""
    from scripts.simulation.check import WITHIN, run_check  # it wants jax

    found = run_check(model, dtype, rounds, lambda line: print(line, flush=True))
    name = "embedded" if model is None else re.sub(r"[^A-Za-z0-9.-]+", "-", Path(model).name)
    path = results / f"simulation-check-{name}-{found['dtype']}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    errors = {(load["load"], name): error for load in found["loads"] for name, error in load["error"].items()}
    worst = max(errors, key=lambda key: abs(errors[key]))
    print(f"the largest error: {100 * errors[worst]:+.0f} % of {worst[1]} ({worst[0]}); written: {path}")
    return abs(errors[worst]) <= WITHIN
