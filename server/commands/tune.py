"""``jaxgen tune``: measure step time by token budget, show it, store the best for ``serve``. A composition root."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxgen.server.log import set_up_logging
from jaxgen.sizing.token_budget import TUNE_CONTEXT, TUNE_ROUNDS, power
from jaxgen.terminal.command_line import CommandLine
from jaxgen.terminal.extras import need
from jaxgen.terminal.model_flags import add_loading_flags, hub_options

if TYPE_CHECKING:
    from jaxgen.tools.tune import BudgetTime, Tuning

_HEADER = f"{'budget':>8}{'decodes':>9}{'step, ms':>11}{'tokens/s':>11}{'compile, s':>12}"


def make_parser() -> CommandLine:
    """Return the parser, whose flags can also be set as JAXGEN_<FLAG>."""
    parser = CommandLine(
        prog="jaxgen tune",
        description="Measure a model's step time against the token budget on this device, and keep the best: jaxgen "
        "serve uses it when no --token-budget is given (docs/tuning.md). "
        "Each flag can also be set by a variable: --cache-dir by JAXGEN_CACHE_DIR.",
        auto_env_var_prefix="JAXGEN_",
        bare="model",
    )
    add_loading_flags(parser)
    parser.add_argument(
        "--budgets", type=_budgets, help="token budgets to try (default: 16,32,... until past the best)"
    )
    parser.add_argument("--context", type=int, default=TUNE_CONTEXT, help="tokens before each decode")
    parser.add_argument("--rounds", type=int, default=TUNE_ROUNDS, help="timings of each budget; the median counts")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="share of an accelerator's memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also write a PNG; needs the extra bench")
    return parser


def parse_options(argv: Sequence[str]) -> Any:
    """Return the flags as a namespace. Exits with 2 for invalid values."""
    parser = make_parser()
    args = parser.parse_args(argv)
    for name in ("context", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be 1 or more, not {getattr(args, name)}")
    if args.plot is not None and not args.plot.parent.is_dir():
        parser.error(f"--plot {args.plot}: there is no directory {args.plot.parent}")
    if args.plot is not None:
        need("matplotlib", "--plot")
    return args


def _budgets(text: str) -> tuple[int, ...]:
    budgets = tuple(sorted({int(part) for part in text.split(",")}))
    if budgets[0] < 2:
        raise ValueError(text)
    return budgets


def _row(time: "BudgetTime") -> str:
    ms, rate = 1e3 * time.seconds, time.token_budget / time.seconds
    return f"{time.token_budget:>8}{time.decodes:>9}{ms:>11.2f}{rate:>11.0f}{time.compile_seconds:>12.1f}"


def _table(tuning: "Tuning", kept: Path | None) -> str:
    by_budget = power({found.token_budget: found.seconds for found in tuning.times})
    most = max(by_budget.values())
    rows = [
        f"{_row(found)}{by_budget[found.token_budget] / most:>8.2f}"
        + (" <- chosen" if found.token_budget == tuning.token_budget else "")
        for found in tuning.times
    ]
    where = f"kept in {kept}" if kept else "not kept"
    ended = f"no larger one was tried: {tuning.ended}"
    return "\n".join([f"{_HEADER}{'power':>8}", *rows, f"token budget {tuning.token_budget}, {where}; {ended}"])


def _tune(args: Any) -> tuple["Tuning", Path | None]:
    from jaxgen.tools.tune import tune

    return tune(
        args.model,
        hub=hub_options(args),
        dtype=args.dtype,
        kernels=args.kernels,
        quantization=args.quantization,
        load_format=args.load_format,
        cache_dir=args.cache_dir,
        gpu_memory_utilization=args.gpu_memory_utilization,
        kv_cache_dtype=args.kv_cache_dtype,
        budgets=args.budgets,
        context=args.context,
        rounds=args.rounds,
        report=lambda found: print(_row(found), file=sys.stderr, flush=True),
    )


def main(argv: Sequence[str]) -> int:
    """Run ``jaxgen tune``. Raises ConfigError when the model cannot be measured."""
    args = parse_options(argv)
    set_up_logging()
    print(f"first blocks of steps\n{_HEADER}", file=sys.stderr, flush=True)
    tuning, kept = _tune(args)
    record = {**asdict(tuning), "kept": str(kept) if kept else None}
    print(json.dumps(record) if args.json else _table(tuning, kept))
    if args.plot is not None:
        from jaxgen.server.commands.tune_plot import plot_tuning

        plot_tuning(record, args.model or "the embedded model", args.plot)
    return 0
