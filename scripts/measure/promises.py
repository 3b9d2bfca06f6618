"""What a server promises when it starts, against what it does: the longest time between tokens, and to the first token.

    .venv/bin/python -m scripts.measure.promises                               the embedded model, 88M and 1B; minutes
    .venv/bin/python -m scripts.measure.promises --shapes 1b --clients 4 --seconds 30

For each shape a server starts with its defaults, in bfloat16 where weights are random. What it promises is read off its
start-up line and, while it works, off /metrics. Then prompts come alone, and after that beside closed loops of clients.
Keep the machine otherwise idle.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from prometheus_client.parser import text_string_to_metric_families

from jaxgen.hardware.device_info import this_cpu
from jaxgen.server.benchmark.client import CompletionsClient
from jaxgen.server.benchmark.load import Load, closed_loop, run_bounded
from jaxgen.server.benchmark.metrics import RequestRecord, spread
from jaxgen.server.benchmark.requests import IdPrompts, Lengths, PlannedRequest, Planner, request_fields
from scripts.measure.shapes import SHAPES
from scripts.peers.jaxgen import Jaxgen
from scripts.peers.load import VOCAB_SIZE
from scripts.peers.peer import SERVED_NAME, Launch, Site
from scripts.peers.process import RunningServer, free_port, running
from scripts.peers.shapes import FORMATS

EMBEDDED = "embedded"
PACE = re.compile(r"Expect a token within (\S+) ms.*the first token after (\S+) s per 1,000 prompt tokens")
GAUGES = ("jaxgen_longest_step_seconds", "jaxgen_first_token_seconds_per_1000_prompt_tokens")
PROMISED_PROMPT = 1000
PROMPTS = (256, PROMISED_PROMPT)
"""Lengths of the prompts that come alone. Of the shorter a share is promised; beside others it would not be one."""
ALONE = 5
"""Prompts of each length that come alone."""
EVERY_SECONDS = 2.0
"""After so many seconds under load a prompt comes beside it, each time."""
LOAD_PROMPT, LOAD_ANSWER = 256, 60
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Promise:
    """Seconds: the longest step, and to the first token after 1,000 of a prompt."""

    step: float
    first: float


class Measurement:
    """Requests to one server, and what it promised meanwhile."""

    def __init__(self, server: RunningServer, client: CompletionsClient, promised: Promise) -> None:
        self._server = server
        self._client = client
        self._promised = promised
        self._seeds = iter(range(10**6))  # no two prompts of a run are alike

    async def run(self, clients: int, seconds: float) -> Iterable[tuple[str, float, float]]:
        """What was promised and measured, by name."""
        rows = []
        for length in PROMPTS:
            found = [await self._first_token(length) for _ in range(1 + ALONE)][1:]
            promised = self._promised.first * length / PROMISED_PROMPT
            rows.append((f"first token after {length:,} alone", promised, median(found)))
        load = Load(self._client, PATIENCE)
        requests = self._requests(round(64 * seconds) + clients, LOAD_PROMPT, LOAD_ANSWER, 0.3)
        begin = perf_counter()
        working = asyncio.create_task(
            run_bounded(closed_loop(load, requests, [0.0] * clients), seconds, asyncio.Event())
        )
        promises, firsts = [], []
        while not (await asyncio.wait({working}, timeout=EVERY_SECONDS))[0]:
            promises.append(await asyncio.to_thread(self._now))
            firsts.append(await self._first_token(PROMISED_PROMPT))
        await working
        rows += self._gaps(load.records, begin + seconds / 2, [promise.step for promise in promises])
        promised = median(promise.first for promise in promises)
        rows.append((f"first token after {PROMISED_PROMPT:,} beside {clients}", promised, median(firsts)))
        return rows

    def _gaps(
        self, records: list[RequestRecord], begin: float, steps: list[float]
    ) -> Iterable[tuple[str, float, float]]:
        """Times between tokens in the second half of the load, when clients no longer do the same at the same time."""
        times = sorted(
            now - before
            for record in records
            for (before, _), (now, _) in zip(record.arrivals, record.arrivals[1:], strict=False)
            if before >= begin
        )
        found = spread(times)
        at_start, under_load = self._promised.step, median(steps)
        yield "P50 between tokens", at_start, found["p50"] or 0.0
        yield "P99 between tokens", at_start, found["p99"] or 0.0
        yield "the same, as promised under load", under_load, found["p99"] or 0.0
        yield "longest between tokens", at_start, times[-1]

    async def _first_token(self, length: int) -> float:
        """Seconds to the first token of a prompt; its answer has two."""
        load = Load(self._client, PATIENCE)
        await load.send(self._requests(1, length, 2, 0.0)[0])
        return load.records[0].first_token_time

    def _requests(self, number: int, prompt: int, answer: int, std_share: float) -> list[PlannedRequest]:
        fields = request_fields(SERVED_NAME, usage="continuous", ignore_eos=True, temperature=0.0, top_p=1.0)
        seed = next(self._seeds)
        lengths = Lengths.about(prompt, answer, std_share)
        return Planner(lengths, IdPrompts(VOCAB_SIZE, 0, seed), 0, fields, seed).requests(number)

    def _now(self) -> Promise:
        with urllib.request.urlopen(self._server.base_url.removesuffix("/v1") + "/metrics", timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            values = {sample.name: sample.value for family in families for sample in family.samples}
        return Promise(*(values[name] for name in GAUGES))


def at_start(log: Path) -> Promise:
    """What the server's start-up line promises, once it is there."""
    while (found := PACE.search(log.read_text())) is None:
        time.sleep(0.1)
    return Promise(float(found[1]) / 1e3, float(found[2]))


def launch(site: Site, port: int) -> Launch:
    if site.shape != EMBEDDED:
        return Jaxgen().launch(site, FORMATS["bfloat16"], port)
    flags = [
        "--port",
        str(port),
        "--served-model-name",
        SERVED_NAME,
        "--cache-dir",
        str(site.work_dir / "jaxgen-cache"),
    ]
    return Launch([sys.executable, "-m", "jaxgen.server.cli", "serve", *flags])


async def measure(server: RunningServer, promised: Promise, args: argparse.Namespace) -> None:
    async with CompletionsClient(server.base_url) as client:
        for name, promise, found in await Measurement(server, client, promised).run(args.clients, args.seconds):
            print(f"  {name:36s} {1e3 * promise:9.1f} {1e3 * found:9.1f} {found / promise:7.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="embedded,88m,1b", help="comma-separated; of scripts.make.random_model")
    parser.add_argument("--clients", type=int, default=16, help="closed loops, prompts of 256 and answers of 60 tokens")
    parser.add_argument("--seconds", type=float, default=60.0, help="under load")
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()) / "peers-work")
    args = parser.parse_args()
    for shape in args.shapes.split(","):
        if shape not in (EMBEDDED, *SHAPES):
            parser.error(f"--shapes: no {shape}; there are {', '.join((EMBEDDED, *SHAPES))}")
    for shape in args.shapes.split(","):
        site, port = Site(args.work_dir.resolve(), this_cpu().num_cores, shape), free_port()
        log = site.log(f"promises-{shape}")
        with running(launch(site, port), port, site.cores, log) as server:
            promised = at_start(log)
            print(f"{shape}, {args.clients} clients, load average {os.getloadavg()[0]:.1f}")
            print(f"  {'ms':36s} {'promised':>9s} {'measured':>9s} {'ratio':>7s}")
            asyncio.run(measure(server, promised, args))


if __name__ == "__main__":
    main()
