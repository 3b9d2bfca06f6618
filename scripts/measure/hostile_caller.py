"""What one hostile caller does to another's stream: gaps between tokens without it, and while it sends what it can.

    .venv/bin/python -m scripts.measure.hostile_caller --quiet 60 --hostile 600 [--output FILE.json]

Starts `jaxgen serve` with the embedded model and two keys. The first caller streams answers one after another. After
``--quiet`` seconds the second sends, in several threads, grammars, schemas, tools, log-probabilities, long texts and
streams that it does not read.
"""

import argparse
import http.client
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jaxgen.server.benchmark.metrics import spread

CALLER, HOSTILE = "the-callers-key", "the-hostile-key"
THREADS = 8
START_SECONDS = 300.0
PATIENCE = 60.0


def attacks() -> list[tuple[str, dict[str, Any]]]:
    """Return paths and bodies, each of which could once hold a server for seconds or take gigabytes."""

    def completion(**fields: Any) -> tuple[str, dict[str, Any]]:
        return "/v1/completions", {"prompt": "x", "max_tokens": 4} | fields

    def chat(*parameters: Any) -> tuple[str, dict[str, Any]]:
        tools = [
            {"type": "function", "function": {"name": f"f{n}", "parameters": one}} for n, one in enumerate(parameters)
        ]
        hi = [{"role": "user", "content": "hi"}]
        return "/v1/chat/completions", {"messages": hi, "max_tokens": 4, "tools": tools, "tool_choice": "required"}

    rules = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(7_900)) + 'r7900 ::= "a"\n'
    branches = {"properties": {"a": {}}, "allOf": [{"items": 0}] * 9_000}
    products: dict[str, Any] = {
        "allOf": [{"anyOf": [{"properties": {f"k{i}{j}": {}}} for j in range(8)]} for i in range(8)]
    }
    prompts = [[5 + (i + j) % 500 for j in range(2_000)] for i in range(96)]
    return [
        completion(structured_outputs={"grammar": "\n" * 131_000 + "x"}),
        completion(structured_outputs={"grammar": rules}),
        completion(structured_outputs={"json": "[" * 100_000 + "]" * 100_000}),
        completion(structured_outputs={"json": {"type": "number", "multipleOf": 0.000_123_456_7, "maximum": 1e9}}),
        completion(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": branches}}),
        completion(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": products}}),
        chat({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 100}}}),
        chat(*[branches | {"title": str(n)} for n in range(10)]),
        completion(prompt=prompts, max_tokens=1, prompt_logprobs=20),
        completion(prompt=prompts[0][:900], max_tokens=1, logprobs=20, echo=True),
        completion(prompt="hello wide world, " * 194_000, max_tokens=1, truncate_prompt_tokens=10),
        completion(n=64, max_tokens=400, ignore_eos=True),
        completion(n=16, max_tokens=400, ignore_eos=True, stream=True, logprobs=5),
    ]


@contextmanager
def server(folder: Path) -> Iterator[tuple[int, int]]:
    """Start a server, and yield its port and process id once it is ready."""
    keys = folder / "keys"
    keys.write_text(f"{CALLER}\n{HOSTILE}\n")
    keys.chmod(0o600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = (sys.executable, "-m", "jaxgen.server.cli", "serve", "--port", str(port), "--api-key-file", str(keys))
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_SECONDS
        while not _ready(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no server: {(folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _ready(port: int) -> bool:
    with suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    return False


@contextmanager
def _post(port: int, key: str, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        connection.request("POST", path, json.dumps(body), headers)
        with connection.getresponse() as answer:
            yield answer
    finally:
        connection.close()


def stream_for(port: int, seconds: float, tokens: int = 200) -> list[float]:
    """Stream answers one after another, and return the seconds between events. Raises RuntimeError for a refusal."""
    gaps: list[float] = []
    until = time.monotonic() + seconds
    body = {"prompt": "def main():", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    while time.monotonic() < until:
        with _post(port, CALLER, "/v1/completions", body) as answer:
            if answer.status != 200:
                raise RuntimeError(f"the caller got {answer.status}: {answer.read()[:300]!r}")
            last = time.monotonic()
            while line := answer.readline():
                if line.startswith(b"data:"):
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now
    return gaps


def attack(port: int, stop: threading.Event, seed: int, statuses: Counter[str]) -> None:
    """Send attacks in a random order until told to stop; every other stream is left unread."""
    generator, bodies = random.Random(seed), attacks()
    for number in itertools.count():
        if stop.is_set():
            return
        path, body = generator.choice(bodies)
        try:
            with _post(port, HOSTILE, path, body) as answer:
                statuses[str(answer.status)] += 1
                if body.get("stream") and number % 2:
                    stop.wait(5)
                else:
                    answer.read()
        except (OSError, http.client.HTTPException) as error:
            statuses[type(error).__name__] += 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds without the hostile caller")
    parser.add_argument("--hostile", type=float, default=600.0, help="seconds with it")
    parser.add_argument("--output", type=Path, help="file for the figures, in JSON")
    options = parser.parse_args(arguments)
    statuses: Counter[str] = Counter()
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (port, process):
        stream_for(port, 2.0)
        quiet = stream_for(port, options.quiet)
        threads = [threading.Thread(target=attack, args=(port, stop, seed, statuses)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            hostile = stream_for(port, options.hostile)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        peak = _peak_mib(process)
    result = {
        "cores": os.cpu_count(),
        "gaps_s_without": spread(quiet) | {"max": max(quiet)},
        "gaps_s_with": spread(hostile) | {"max": max(hostile)},
        "statuses_of_the_hostile_caller": dict(statuses),
        "server_peak_mib": peak,
    }
    print(json.dumps(result, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _peak_mib(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) // 1024


if __name__ == "__main__":
    sys.exit(main())
