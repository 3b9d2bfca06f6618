"""1 to 16 replicas, each with its own part of the load, under several routers: docs/results/replicas.json."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.server.benchmark.metrics import percentile
from scripts.simulation.fastgen import BLOCK_SIZE, MAX_MODEL_LEN, MAX_NUM_SEQS, TOKEN_BUDGET, settings
from scripts.simulation.load import Load, normal_requests
from scripts.simulation.loop import Fleet, seconds_at
from scripts.simulation.merits import rounded
from scripts.simulation.policies import SplitFuse
from scripts.simulation.record import Recorder
from scripts.simulation.replicas.loads import scaled_closed_loop, scaled_open_loop, with_long_ones, zipf_requests
from scripts.simulation.replicas.routers import LeastWork, PrefixAffinity, Quote, RoundRobin, Router

RESULTS = "replicas.json"
SIZES = (1, 2, 4, 8, 16)
SEED = 42
CLIENTS = 16
PROMPT, OUTPUT = 2600, 60
SETTING = settings()["calibrated"]
FASTGEN_BLOCKS = SETTING.hardware.cache_tokens // BLOCK_SIZE
RATE, LONG_PROMPT, LONG_EVERY = 1.0, 7000, 10
PREFIXES, PREFIX_TOKENS, PREFIX_BLOCKS = 128, 1500, 1500

Point = dict[str, Any]
"""Figures of so many replicas behind a router."""
Routers = Mapping[str, Callable[[], Router]]

LEAST_TOKENS: Routers = {"fewest prompt tokens": lambda: LeastWork("tokens")}
LEAST: Routers = {"fewest requests": lambda: LeastWork("requests"), **LEAST_TOKENS}
QUOTE_OF_TWO: Routers = {"quotes of two": lambda: Quote(SEED)}
QUOTES: Routers = {**QUOTE_OF_TWO, "quotes of all": lambda: Quote(SEED, None)}
AFFINITY: Routers = {"prefix, bounded": PrefixAffinity}


@dataclass(frozen=True, slots=True)
class Study:
    """A load, as each number of replicas gets it, and the routers that it is put behind."""

    title: str
    make: Callable[[int], Load]
    routers: Routers
    num_blocks: int = FASTGEN_BLOCKS
    prefix_caching: bool = False


def studies(requests: int = 256, fastgen_requests: int = 512) -> dict[str, Study]:
    """``requests``: for each replica."""
    fastgen = normal_requests(PROMPT, OUTPUT, fastgen_requests, SEED)
    mixed = with_long_ones(fastgen[:requests], LONG_PROMPT, LONG_EVERY)
    own = PROMPT - PREFIX_TOKENS
    shared = zipf_requests(own, OUTPUT, requests, SEED, prefixes=PREFIXES, prefix_tokens=PREFIX_TOKENS)
    anyone: Routers = {"round robin": RoundRobin}
    return {
        "fastgen": Study(
            f"FastGen's load: {CLIENTS} clients for each replica",
            lambda replicas: scaled_closed_loop(fastgen, CLIENTS, replicas, SEED),
            {**anyone, **LEAST_TOKENS, **AFFINITY, **QUOTE_OF_TWO},
        ),
        "mixed": Study(
            f"Some long prompts: {RATE:g} request/s for each replica",
            lambda replicas: scaled_open_loop(mixed, RATE, replicas, SEED),
            {**anyone, **LEAST, **QUOTES},
        ),
        "shared": Study(
            f"Shared prefixes: {CLIENTS} clients for each replica",
            lambda replicas: scaled_closed_loop(shared, CLIENTS, replicas, SEED),
            {
                **anyone,
                **LEAST_TOKENS,
                **AFFINITY,
                "prefix, no bound": lambda: PrefixAffinity(inf),
                **QUOTES,
                "quotes of home and another": lambda: Quote(SEED, home=True),
            },
            PREFIX_BLOCKS,
            prefix_caching=True,
        ),
    }


def study_replicas(results: Path, say: Callable[[str], None]) -> None:
    """Write docs/results/replicas.json."""
    results.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, study in studies().items():
        points = []
        for point in simulate(study):
            points.append(point)
            say(f"{name}: {point['replicas']} replicas, {point['router']}: {point['requests_per_s']} requests/s")
        found[name] = {"title": study.title, "points": points}
    about = {"kind": "simulated", "seed": SEED, "costs": SETTING.title}
    (results / RESULTS).write_text(json.dumps(about | {"loads": found}, indent=1) + "\n")


def simulate(study: Study, sizes: tuple[int, ...] = SIZES) -> Iterator[Point]:
    """Yield one replica, then several behind each router. ``efficiency``: of requests/s, relative to one replica's."""
    one = _point(study, 1, "one replica", RoundRobin())
    yield one | {"efficiency": 1.0}
    for replicas in sizes:
        for name, make in study.routers.items() if replicas > 1 else ():
            point = _point(study, replicas, name, make())
            yield point | {"efficiency": round(point["requests_per_s"] / (replicas * one["requests_per_s"]), 4)}


def _point(study: Study, replicas: int, name: str, router: Router) -> Point:
    cache = CacheConfig(BLOCK_SIZE, study.num_blocks)
    config = SchedulerConfig(TOKEN_BUDGET, MAX_NUM_SEQS, MAX_MODEL_LEN)
    caching, step_time = study.prefix_caching, SETTING.step_time
    policies = [SplitFuse(config, cache, step_time=step_time, prefix_caching=caching) for _ in range(replicas)]
    fleet = Fleet(policies, seconds_at(step_time), study.make(replicas), router)
    recorder = fleet.run()
    found = recorder.summary()
    figures = {
        "requests_per_s": found["requests_per_s"],
        "ttft_p50": found["ttft_s"]["p50"],
        "ttft_p95": found["ttft_s"]["p95"],
        "token_p95": found["inter_token_s"]["p95"],
    }
    if caching:
        figures["hits"] = sum(one.prefix_hits for one in policies) / sum(one.prefix_queries for one in policies)
    if isinstance(router, Quote):
        late = _lateness(recorder, router.quotes)
        figures |= {"late_p50": percentile(late, 50), "late_p95": percentile(late, 95)}
    about = {"replicas": replicas, "router": name, "completed": found["requests"]["completed"]}
    return about | rounded(figures)


def _lateness(recorder: Recorder, quotes: Mapping[str, float]) -> list[float]:
    """Return, sorted, by how many seconds each first token came after its quote."""
    return sorted(
        record.first_token_time - quotes[name] for name, record in zip(recorder.ids, recorder.records, strict=True)
    )
