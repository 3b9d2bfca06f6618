"""``jaxgen plan``: say before loading what fits in a device's memory. A composition root."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jaxgen.core.config import EngineConfig
from jaxgen.core.errors import one_line
from jaxgen.server.flags.serve_options import engine_options
from jaxgen.server.flags.serve_options import make_parser as make_serve_parser
from jaxgen.terminal.command_line import CommandLine
from jaxgen.terminal.environment import check_environment
from jaxgen.terminal.model_flags import hub_options
from jaxgen.terminal.sizes import parse_size

if TYPE_CHECKING:
    from jaxgen.tools.plan import Planned

_GIB = 2**30


def make_parser() -> CommandLine:
    """Return the parser: the flags of ``jaxgen serve``, and those of the plan."""
    parser = make_serve_parser(
        "plan",
        "Say what jaxgen serve would allocate with the same flags: weights, KV cache, longest context, rows. Reads the "
        "configuration and the headers of the weights, also those of a hub id, and loads nothing. Exit status: 0 it "
        "fits, 1 it does not, 2 it could not be planned.",
    )
    group = parser.add_argument_group("plan")
    group.add_argument(
        "--device-memory",
        type=parse_size,
        metavar="SIZE",
        help="plan for an accelerator with this much memory, 24GiB or 24GB (default: this machine's device)",
    )
    group.add_argument("--json", action="store_true", help="print one JSON object, sizes in bytes")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run ``jaxgen plan``; return 0 if the model fits, else 1. Raises ConfigError if it cannot be planned."""
    parser = make_parser()
    args = parser.parse_args(argv)
    check_environment(parser, os.environ)
    from jaxgen.tools.plan import plan_model

    planned = plan_model(
        args.model,
        dtype=args.dtype,
        kernels=args.kernels,
        quantization=args.quantization,
        load_format=args.load_format,
        options=engine_options(args),
        hub=hub_options(args),
        cache_dir=args.cache_dir,
        device_memory=args.device_memory,
        tokenizer=args.tokenizer,
    )
    if args.json:
        print(json.dumps(as_json(planned), indent=1))
    else:
        print("\n".join(f"{name:17} {value}" for name, value in lines(planned)))
    return 0 if planned.plan.config is not None else 1


def lines(planned: "Planned") -> Iterator[tuple[str, str]]:
    """Yield the numbers of a plan: what each is, and its value with its unit."""
    plan, stored, scheduler = planned.plan, planned.stored, planned.plan.scheduler
    yield "model", str(planned.model)
    if planned.tokenizer_problem:
        yield "tokenizer", f"none, so serve would not start: {planned.tokenizer_problem}"
    files, dtypes = _count(stored.num_files, "file"), " and ".join(stored.numbers)
    checkpoint = (
        f"{_size(stored.num_bytes)} in {files}, {dtypes}" if stored.num_files else "not read: weights are random"
    )
    yield "checkpoint", checkpoint
    yield "device", _device(planned)
    taken = plan.allocation
    yield "weights", f"{_size(taken.weights)} in {planned.model.dtype}"
    yield "step temporaries", f"{_size(taken.temporaries)}, an estimate until the step is compiled"
    yield "row states", f"{_size(taken.rows)} of {scheduler.max_num_seqs:,} sequences"
    if taken.states:
        rows = _count(scheduler.max_num_seqs, "sequence")
        yield "layer states", f"{_size(taken.states)} of {rows} and {_count(plan.num_snapshots, 'snapshot')}"
    why = "the process itself" if plan.memory.is_cpu else "fragments and small programs"
    yield "slack", f"{_size(taken.slack)} for {why}"
    yield "token budget", f"{scheduler.token_budget:,} tokens in a step ({planned.budget.reason})"
    yield "rows", f"{scheduler.max_num_seqs:,} sequences in a step at most"
    if plan.config is not None:
        yield from _cache_lines(planned, plan.config)
    else:
        yield "does not fit", one_line(plan.problem)
        yield "for the cache", f"{_size(-plan.left)} are missing" if plan.left < 0 else f"{_size(plan.left)} are left"
    for number, change in enumerate(planned.changes):
        gives = "" if "--max-model-len" in change else f", for {planned.wanted_context:,} tokens of context"
        yield "or" if number else "to change", change + gives


def _cache_lines(planned: "Planned", config: EngineConfig) -> Iterator[tuple[str, str]]:
    plan, model, cache = planned.plan, planned.request.model, config.cache
    where = "" if config.streaming is None else " of the device for what passes through: it is in host memory"
    of = "" if model.kv_dtype == "auto" else f" of {model.kv_dtype}"
    yield "cache", f"{_size(plan.allocation.cache)}{of}{where}"
    yield "cache blocks", f"{cache.num_blocks:,} blocks of {cache.block_size} tokens"
    yield "cache tokens", f"{cache.num_slots:,} tokens"
    yield from _kind_lines(planned)
    if plan.allocation.staging:
        yield "staging", f"{_size(plan.allocation.staging)} for copies to and from host memory"
    if plan.host:
        snapshots = " and snapshots" if model.states and config.streaming is None else ""
        yield "host memory", f"{_size(plan.host)} of KV blocks{snapshots}"
    yield "longest context", f"{config.scheduler.max_model_len:,} tokens of the model's {model.max_position:,}"
    yield "at once", _count(plan.longest_at_once, "sequence") + " of the longest context"
    yield "left over", _size(plan.left)


def _kind_lines(planned: "Planned") -> Iterator[tuple[str, str]]:
    """Yield what layers with a window take, and what sequences of several lengths do; nothing of other models."""
    plan, model = planned.plan, planned.request.model
    if len(model.cache_kinds) == 1 and not model.states:
        return
    if plan.why_whole:
        yield "windows", f"their layers keep the whole context: {plan.why_whole}"
    elif len(plan.kinds) > 1:
        for part in plan.kinds:
            layers = _count(len(part.kind.layers), "layer")
            yield part.kind.name, f"{_size(part.num_bytes)}, {part.num_blocks:,} blocks in {layers}"
    yield "a sequence", ", ".join(f"{_size(size)} at {tokens:,} tokens" for tokens, size in plan.sequences)


def as_json(planned: "Planned") -> dict[str, Any]:
    """Return the plan as JSON has it; sizes are bytes, and null stands for what a plan that does not fit lacks."""
    plan, target, config = planned.plan, planned.target, planned.plan.config
    cache, taken, model = None if config is None else config.cache, plan.allocation, planned.request.model
    return {
        "fits": config is not None,
        "num_devices": model.num_devices,
        "problem": plan.problem or None,
        "changes": planned.changes,
        "changes_give_tokens": planned.wanted_context if planned.changes else None,
        "model": {name: value for name, value in asdict(planned.model).items() if name != "problem"},
        "tokenizer_problem": planned.tokenizer_problem or None,
        "checkpoint": asdict(planned.stored),
        "device": target.device.kind,
        "platform": target.device.platform,
        "device_bytes": target.total_bytes,
        "container_bytes": target.container_bytes,
        "usable_bytes": plan.memory.free_bytes,
        "dtype": model.dtype,
        "weights_bytes": taken.weights,
        "temporaries_bytes_estimated": taken.temporaries,
        "rows_bytes": taken.rows,
        "slack_bytes": taken.slack,
        "kv_cache_dtype": model.kv_dtype,
        "cache_bytes": None if config is None else taken.cache,
        "staging_bytes": None if config is None else taken.staging,
        "host_bytes": None if config is None else plan.host,
        "left_bytes": plan.left,
        "block_size": planned.request.block_size,
        "num_blocks": None if cache is None else cache.num_blocks,
        "cache_tokens": None if cache is None else cache.num_slots,
        "states_bytes": taken.states,
        "num_snapshots": None if cache is None else cache.num_snapshots,
        "cache_kinds": [
            {
                "name": part.kind.name,
                "layers": len(part.kind.layers),
                "window": part.kind.window,
                "num_blocks": part.num_blocks,
                "bytes": part.num_bytes,
            }
            for part in plan.kinds
        ],
        "sequence_bytes": None if cache is None else dict(plan.sequences),
        "token_budget": plan.scheduler.token_budget,
        "max_num_seqs": plan.scheduler.max_num_seqs,
        "max_model_len": None if config is None else config.scheduler.max_model_len,
        "longest_at_once": None if config is None else plan.longest_at_once,
        "kv_residency": None if config is None else "device" if config.streaming is None else "host",
    }


def _device(planned: "Planned") -> str:
    of_several = planned.request.model.num_devices
    each = "" if of_several == 1 else f", on each of {of_several} devices, as all sizes here"
    return _one_device(planned) + each


def _one_device(planned: "Planned") -> str:
    target, usable = planned.target, _size(planned.plan.memory.free_bytes)
    if target.device.is_cpu:
        limit = target.container_bytes
        of = "of memory are free" if limit is None else f"are free of the {_size(limit)} that the container may use"
        return f"{target.device.title}: {usable} {of}"
    share = planned.request.options.gpu_memory_utilization
    return f"{target.device.kind}: {usable} may be used (--gpu-memory-utilization {share:g})"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _size(size: int) -> str:
    return f"{size / _GIB:,.2f} GiB" if size >= _GIB / 10 else f"{1024 * size / _GIB:,.1f} MiB"
