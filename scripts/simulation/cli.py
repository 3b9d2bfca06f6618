"""The command ``python -m scripts.simulation``."""

import argparse
import json
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Literal

from jaxgen.core.model_config import DTYPES, DType
from scripts.simulation.device import MAX_NUM_SEQS, MEASURED_BUDGET, simulate_device
from scripts.simulation.fastgen import Setting, make_policies, settings
from scripts.simulation.load import read_trace
from scripts.simulation.loop import Simulation, seconds_at
from scripts.simulation.merits import simulate_setting
from tests.support.hub_configs import HUB, read

OPTIONS_OF = {
    "trace": ("setting", "policy"),
    "check": ("model", "dtype", "rounds"),
    "device": ("token_budget", "expected"),
}
"""Options that say more of one thing to do."""


def main(description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--trace", type=Path, metavar="FILE", help="of requests, a line of JSON each")
    what.add_argument("--check", action="store_true", help="predict live runs of a model on this machine")
    what.add_argument(
        "--device", type=Path, nargs="+", metavar="FILE", help="serve Llama-3-8B at costs of scripts.gpu's result files"
    )
    parser.add_argument("--token-budget", type=int, metavar="N", help="of the device's steps; default: 256")
    parser.add_argument(
        "--expected",
        type=_step,
        nargs="+",
        metavar="TOKENS:SECONDS",
        help="that steps take whose kernels skip padding, without the attention of decodes; default: as measured",
    )
    parser.add_argument("--setting", choices=list(settings()), help="a trace's costs and cache; default: calibrated")
    parser.add_argument("--policy", choices=("SplitFuse", "prompt-first", "static"), help="default: SplitFuse")
    parser.add_argument("--model", help="that is checked, a directory or hub id; default: the embedded one")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), help="that it is checked in; default: auto")
    parser.add_argument("--rounds", type=int, help="of live runs, 1 or more; default: 3")
    args = parser.parse_args()
    for mode, names in OPTIONS_OF.items():
        for name in names:
            if getattr(args, name) is not None and not getattr(args, mode):
                parser.error(f"--{name.replace('_', '-')} goes with --{mode}")
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
    if args.device:
        show_device(args.device, args.token_budget or MEASURED_BUDGET, args.expected or ())
        return 0
    if args.check:
        return 0 if check(args.model, args.dtype or "auto", args.rounds or 3) else 1
    for name, setting in settings().items():
        for point in simulate_setting(setting):
            print(json.dumps({"setting": name} | point), flush=True)
    return 0


def show_trace(path: Path, setting: Setting, policy: str) -> None:
    simulation = Simulation(make_policies(setting)[policy], seconds_at(setting.step_time), read_trace(path))
    print(json.dumps(simulation.run().summary() | {"steps": simulation.num_steps}, indent=2))


def show_device(files: Sequence[Path], budget: int, expected: Sequence[tuple[int, float]]) -> None:
    """Print a line of JSON for each load. Raises ValueError for files or a budget that do not serve."""
    if budget < MAX_NUM_SEQS:
        raise ValueError(f"--token-budget must be {MAX_NUM_SEQS} or more, a token for each row, not {budget}")
    if expected and budget > (most := max(tokens for tokens, _ in expected)):
        raise ValueError(f"--expected knows steps of {most} tokens at most, and --token-budget is {budget}")
    for point in simulate_device(files, read(HUB["Llama-3.1-8B"].config), budget, expected):
        print(json.dumps(point), flush=True)


def _step(text: str) -> tuple[int, float]:
    """Read TOKENS:SECONDS."""
    tokens, _, seconds = text.partition(":")
    try:
        step = int(tokens), float(seconds)
    except ValueError:
        step = 0, 0.0
    if step[0] < 1 or not 0.0 < step[1] < inf:
        raise argparse.ArgumentTypeError(f"must be TOKENS:SECONDS, such as 256:0.0066, not {text!r}")
    return step


def check(model: str | None, dtype: DType | Literal["auto"], rounds: int) -> bool:
    """Print what was found as JSON. Return whether all predictions were good enough."""
    from scripts.simulation.check import WITHIN, run_check  # it wants jax

    result = run_check(model, dtype, rounds, lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(result, indent=1))
    errors = {(load["load"], name): error for load in result["loads"] for name, error in load["error"].items()}
    worst = max(errors, key=lambda key: abs(errors[key]))
    print(f"the largest error: {100 * errors[worst]:+.0f} % of {worst[1]} ({worst[0]})", file=sys.stderr)
    return abs(errors[worst]) <= WITHIN
