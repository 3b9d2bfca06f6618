"""``jaxgen verify-determinism``: check that answers are bitwise equal in all scenarios. A composition root."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxgen.core.config import KV_RESIDENCIES, OFFLOAD_POLICIES, EngineOptions
from jaxgen.server.log import set_up_logging
from jaxgen.terminal.command_line import CommandLine
from jaxgen.terminal.model_flags import add_loading_flags, hub_options

if TYPE_CHECKING:
    from jaxgen.tools.determinism import Scenario

ENGINE_FLAGS = ("token_budget", "max_num_seqs", "max_model_len", "block_size", "num_blocks")


def make_parser() -> CommandLine:
    """Return the parser, whose flags can also be set as JAXGEN_<FLAG>."""
    parser = CommandLine(
        prog="jaxgen verify-determinism",
        description="Compute the same random requests alone, with others, with cached prefixes, after preemption and "
        "as prompts, and compare the bits of every token and log-probability (docs/reproducibility.md). "
        "Exit status: 0 all agree, 1 something differs or was not covered, 2 it could not be done. "
        "Each flag can also be set by a variable: --cache-dir by JAXGEN_CACHE_DIR.",
        auto_env_var_prefix="JAXGEN_",
        bare="model",
    )
    add_loading_flags(parser)
    parser.add_argument("--requests", type=int, default=24, help="how many to compare")
    parser.add_argument("--seed", type=int, default=0, help="of the random requests")
    for name in ENGINE_FLAGS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="as for jaxgen serve")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="as for jaxgen serve")
    parser.add_argument("--single-shape", action="store_true", help="as for jaxgen serve")
    parser.add_argument("--kv-offloading-size", type=float, default=0.0, help="as for jaxgen serve; adds a scenario")
    parser.add_argument("--kv-offload-policy", choices=OFFLOAD_POLICIES, default="plan", help="as for jaxgen serve")
    parser.add_argument("--kv-residency", choices=KV_RESIDENCIES, default="device", help="as for jaxgen serve")
    parser.add_argument("--kv-offload-inputs", action="store_true", help="as for jaxgen serve")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report here")
    return parser


def parse_options(argv: Sequence[str]) -> Any:
    """Return the flags as a namespace. Exits with 2 for invalid values."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.requests < 14:
        parser.error(f"--requests must be 14 or more, not {args.requests}: fewer do not cover every way of sampling")
    return args


def main(argv: Sequence[str]) -> int:
    """Run ``jaxgen verify-determinism``; return 0 if all bits agree, 1 if some differ or a scenario was not covered.

    Raises ConfigError if it cannot run.
    """
    args = parse_options(argv)
    set_up_logging()
    from jaxgen.tools.verify import verify_determinism

    flags = (
        *ENGINE_FLAGS,
        "single_shape",
        "tensor_parallel_size",
        "kv_offloading_size",
        "kv_offload_policy",
        "kv_offload_inputs",
        "kv_residency",
        "kv_cache_dtype",
    )
    options = EngineOptions(**{name: getattr(args, name) for name in flags})
    about, scenarios = verify_determinism(
        args.model,
        hub=hub_options(args),
        dtype=args.dtype,
        kernels=args.kernels,
        quantization=args.quantization,
        load_format=args.load_format,
        options=options,
        cache_dir=args.cache_dir,
        requests=args.requests,
        seed=args.seed,
        progress=lambda what: print(f"{what} ...", file=sys.stderr, flush=True),
    )
    passed = all(scenario.passed for scenario in scenarios)
    print(_table(about, scenarios))
    print("all bits agree" if passed else "NOT reproducible, or not covered: see above")
    if args.json is not None:
        report = {**about, "passed": passed, "scenarios": [asdict(scenario) for scenario in scenarios]}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if passed else 1


def _table(facts: dict[str, Any], scenarios: Sequence["Scenario"]) -> str:
    lines = [", ".join(f"{name} {value}" for name, value in facts.items() if name != "digest_parts")]
    for scenario in scenarios:
        happened = ", ".join(f"{count} {what}" for what, count in scenario.happened.items())
        differ = f"{len(scenario.mismatches)} of {scenario.compared} answers differ"
        verdict = "ok" if scenario.passed else differ if scenario.mismatches else "not covered"
        lines.append(f"  {scenario.name:40} {scenario.compared:4} answers  {verdict:12} {happened}".rstrip())
        for mismatch in scenario.mismatches[:1]:
            lines.append(f"    {mismatch.request_id}, event {mismatch.index}:")
            lines += [f"      expected {mismatch.expected}", f"      found    {mismatch.actual}"]
    return "\n".join(lines)
