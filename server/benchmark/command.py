"""``jaxgen benchmark``: run loads against a server, print a table, append a JSON line, draw a plot."""

import asyncio
import importlib.util
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from time import perf_counter, process_time
from typing import Any, Literal

import aiohttp
from tqdm import tqdm

from jaxgen.core.errors import ConfigError
from jaxgen.server.benchmark.client import CompletionsClient, LoadError
from jaxgen.server.benchmark.load import Load, closed_loop, open_loop, run_bounded
from jaxgen.server.benchmark.metrics import RequestRecord, SloTargets, summarize
from jaxgen.server.benchmark.options import OPEN_REQUESTS, parse_options, settings_of
from jaxgen.server.benchmark.requests import (
    IdPrompts,
    Lengths,
    Planner,
    Prompts,
    TextPrompts,
    poisson_arrivals,
    request_fields,
    stagger,
)
from jaxgen.terminal.extras import need
from jaxgen.text.tokenizer import Tokenizer

SCHEMA = 1
MODELS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Point:
    """One load of a run: a closed loop of ``load`` clients, or an open loop of ``load`` requests a second."""

    mode: Literal["closed", "open"]
    load: float
    requests: int
    warmup: int

    def __str__(self) -> str:
        return f"{self.load:g} client{'s' * (self.load != 1)}" if self.mode == "closed" else f"{self.load:g} requests/s"


class Benchmark:
    """Measures the points of a run, one after the other, against a model of the server."""

    def __init__(self, args: Any, client: CompletionsClient, model: str, stop: asyncio.Event) -> None:
        self._args = args
        self._client = client
        self._stop = stop
        self._targets = [SloTargets(sla=sla, ttft_rate=args.ttft_rate, ema_span=args.ema_span) for sla in args.slas]
        self.points = _points(args)
        self._planner = _planner(args, model, sum(point.requests + point.warmup for point in self.points))

    async def measure(self, point: Point) -> dict[str, Any]:
        """Warm up, run the load, and return its figures."""
        warmed = await self._warm_up(point)
        requests = self._planner.requests(point.requests)
        cpu, begin = process_time(), perf_counter()
        with tqdm(total=len(requests), desc=str(point), unit="request", disable=None) as bar:
            load = Load(self._client, self._args.timeout, _progress(bar))
            if point.mode == "closed":
                work = closed_loop(load, requests, stagger(self._args.seed, int(point.load), self._args.stagger))
            else:
                work = open_loop(load, requests, poisson_arrivals(self._args.seed, point.load, len(requests)))
            await run_bounded(work, self._args.max_seconds, self._stop)
        share = (process_time() - cpu) / (perf_counter() - begin)
        figures = summarize(load.records, self._targets)
        figures["requests"]["not_sent"] = len(requests) - len(load.records)
        return {
            "mode": point.mode,
            "load": point.load,
            "client_cpu_share": share,
            "warmup_not_completed": sum(record.outcome != "completed" for record in warmed),
            **figures,
        }

    async def _warm_up(self, point: Point) -> list[RequestRecord]:
        load = Load(self._client, self._args.timeout)
        clients = int(point.load) if point.mode == "closed" else 1
        work = closed_loop(load, self._planner.requests(point.warmup), [0.0] * clients)
        await run_bounded(work, self._args.max_seconds, self._stop)
        return load.records


def _points(args: Any) -> list[Point]:
    closed = [Point("closed", n, args.requests or 4 * n + 32, args.warmup * n) for n in args.clients]
    return closed + [Point("open", rate, args.requests or OPEN_REQUESTS, args.warmup) for rate in args.rates]


def _planner(args: Any, model: str, num_requests: int) -> Planner:
    lengths = Lengths(
        prompt_mean=args.prompt_mean,
        prompt_max=args.prompt_max,
        output_mean=args.output_mean,
        output_max=args.output_max,
    )
    fields = request_fields(
        model,
        usage=args.usage,
        ignore_eos=args.ignore_eos,
        temperature=args.temperature,
        top_p=args.top_p,
        service_tier=args.service_tier,
    )
    return Planner(lengths, _prompts(args, num_requests), args.shared_prefix, fields, args.seed)


def _prompts(args: Any, num_requests: int) -> Prompts:
    if args.prompt_kind == "ids":
        return IdPrompts(args.vocab_size, args.shared_prefix, args.seed)
    passage = num_requests + args.prompt_max
    return TextPrompts(Tokenizer.from_directory(args.tokenizer), args.shared_prefix, args.seed, passage)


def _progress(bar: "tqdm[Any]") -> Callable[[RequestRecord], None]:
    troubles = {"failed": 0, "aborted": 0}

    def count(record: RequestRecord) -> None:
        if record.outcome != "completed":
            troubles[record.outcome] += 1
            bar.set_postfix(troubles, refresh=False)
        bar.update()

    return count


async def _find_model(client: CompletionsClient, args: Any) -> dict[str, Any]:
    """Return the entry of the model at /v1/models; only its id where the server does not list it.

    Raises ConfigError when the server does not answer, has no single model, or the model's context is too short.
    """
    try:
        async with asyncio.timeout(MODELS_SECONDS):
            entries = await client.models()
    except (LoadError, aiohttp.ClientError, OSError) as error:
        raise ConfigError(f"cannot use --base-url {args.base_url}: {error or type(error).__name__}") from error
    names = [entry["id"] for entry in entries]
    if args.model is None and len(names) != 1:
        raise ConfigError(
            f"--model is needed: the server at {args.base_url} has {', '.join(names) or 'no list of models'}"
        )
    model = args.model or names[0]
    entry_of_model = next((entry for entry in entries if entry["id"] == model), {"id": model})
    longest = args.shared_prefix + args.prompt_max + args.output_max
    limit = entry_of_model.get("max_model_len")
    if limit is not None and longest > limit:
        raise ConfigError(
            f"--shared-prefix + --prompt-max + --output-max is {longest}, but {model} takes {limit} tokens: lower "
            "--prompt-max or --output-max"
        )
    return entry_of_model


async def _run(args: Any) -> dict[str, Any]:
    """Measure all points, and return the run for its JSON line. SIGINT ends it early and keeps the points so far."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    started = datetime.now(UTC)
    async with CompletionsClient(args.base_url, args.api_key) as client:
        entry = await _find_model(client, args)
        benchmark = Benchmark(args, client, entry["id"], stop)
        points = []
        for point in benchmark.points:
            if not stop.is_set():
                points.append(await benchmark.measure(point))
                _say(_row(points[-1]) if len(points) > 1 else f"{_HEADER}\n{_row(points[-1])}")
                for reason, times in list(points[-1]["requests"]["reasons"].items())[:3]:
                    _say(f"           {times} x {reason}")
    return {
        "schema": SCHEMA,
        "started": started.isoformat(timespec="seconds"),
        "settings": settings_of(args),
        "server": {"model": entry["id"], "max_model_len": entry.get("max_model_len")},
        "environment": _environment(),
        "interrupted": stop.is_set(),
        "points": points,
    }


def _environment() -> dict[str, Any]:
    """Describe the client's machine. The server's is unknown here."""
    return {
        "jaxgen": version("jaxgen"),
        "python": platform.python_version(),
        "aiohttp": version("aiohttp"),
        "event_loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }


_COLUMNS = ("load", "sent", "done", "fail", "abort", "req/s", "tok/s", "TTFT p50", "p95", "token p50", "p95", "e2e p50")
_HEADER = "  ".join(f"{name:>9}" for name in (*_COLUMNS, "p95", "effective req/s"))


def _row(point: dict[str, Any]) -> str:
    requests = point["requests"]
    cells = [f"{point['load']:g}{'c' if point['mode'] == 'closed' else '/s'}"]
    cells += [str(requests[name]) for name in ("sent", "completed", "failed", "aborted")]
    cells += [_number(point["requests_per_s"]), _number(point["output_tokens_per_s"])]
    cells += [_number(point[name][q]) for name in ("ttft_s", "inter_token_s", "e2e_s") for q in ("p50", "p95")]
    promised = ", ".join(f"{_number(e['requests_per_s'])} at {e['sla_tokens_per_s']:g}" for e in point["effective"])
    return "  ".join([*(f"{cell:>9}" for cell in cells), promised])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _check_outputs(args: Any) -> None:
    """Check before the load that results can be written. Raises ConfigError that names the flag."""
    if args.plot is not None:
        need("matplotlib", "--plot")
    if args.output is not None:
        try:
            args.output.open("a").close()
        except OSError as error:
            raise ConfigError(f"cannot write to --output {args.output}: {error.strerror or error}") from error


def _keep(run: dict[str, Any], args: Any) -> None:
    if args.output is not None:
        with args.output.open("a") as file:
            file.write(json.dumps(run, allow_nan=False) + "\n")
    if args.plot is not None:
        from jaxgen.server.benchmark.plot import plot_run

        plot_run(run, args.plot)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop, which halves the time per chunk; None without uvloop, which comes with uvicorn."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``jaxgen benchmark``; return 0 when every load completed a request, else 1.

    Raises ConfigError when it cannot start.
    """
    args = parse_options(sys.argv[1:] if argv is None else argv)
    _check_outputs(args)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        run = runner.run(_run(args))
    _keep(run, args)
    return 0 if run["points"] and all(point["requests"]["completed"] for point in run["points"]) else 1
