"""Run servers one after another under all loads, within a number of seconds, and record each result as it comes."""

import os
import re
import time
import traceback
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from scripts.gpu.peer.loads import Batch, Load, Target
from scripts.gpu.peer.servers import Attempt, Server
from scripts.gpu.result.header import output_of
from scripts.peers.agreement import NUM_PROMPTS, answers
from scripts.peers.peer import PeerError, token_ids
from scripts.peers.process import RunningServer, free_port, running
from scripts.peers.records import Records

STOP_SECONDS = 20.0
"""In which a server ends, and the device's memory is free again."""
START_SECONDS = 30.0
"""No attempt is begun with less time for it."""
FREE_MIB = 1024
"""More of the device's memory than this is in use only while a server runs, above what others use."""
_FREE_SECONDS = 4.0
_ANSWER_SECONDS = 2.0
_QUERY = ("nvidia-smi", "--format=csv,noheader,nounits", "--query-gpu")


class Run:
    """A run over all servers. ``ends``: its end by the monotonic clock. ``logs``: the folder of servers' outputs."""

    def __init__(self, records: Records, warm_up: Batch, loads: Sequence[Load], ends: float, logs: Path) -> None:
        self._records = records
        self._warm_up = warm_up
        self._loads = loads
        self._ends = ends
        self._logs = logs
        self._used = _memory_in_use()

    def go(self, servers: Sequence[Server], rounds: int, *, same_weights: bool) -> bool:
        """Measure what the records do not have yet, and return whether they have all now.

        Servers take turns in each round. ``same_weights``: completions can be compared, so they are recorded.
        """
        complete = True
        for index in range(rounds):
            for server in servers:
                key = {"round": index, "peer": server.name}
                missing = [load for load in self._loads if not self._records.of_kind("load", **key, **load.key)]
                if missing:
                    complete &= self._turn(server, key, missing, same_weights=same_weights)
        return complete

    def _left(self) -> float:
        """Return the seconds that are left while a server runs."""
        return self._ends - time.monotonic() - STOP_SECONDS

    def _turn(self, server: Server, key: dict[str, Any], loads: list[Load], *, same_weights: bool) -> bool:
        """Start a server, measure it and end it. Return whether it was measured under all loads.

        If it fails, a record says why, and the others are measured.
        """
        began = time.monotonic()
        took = self._records.of_kind("turn", peer=server.name, complete=True)
        complete = False
        try:
            if took and self._left() < took[-1]["seconds"]:
                raise PeerError(f"no time was left: it takes {took[-1]['seconds']:.0f} s")
            with self._ready(server, key) as (target, process):
                if same_weights and process is not None:
                    self._compare(process, key)
                complete = self._measure(target, process, key, loads)
        except Exception as error:
            if not isinstance(error, PeerError):
                traceback.print_exc()
            self._miss(key, f"{error}" if isinstance(error, PeerError) else f"{type(error).__name__}: {error}")
        finally:
            self._wait_for_memory()
            self._records.add("turn", **key, seconds=time.monotonic() - began, complete=complete)
        return complete

    def _compare(self, process: RunningServer, key: dict[str, Any]) -> None:
        """Record completions that can be compared with those of another server, where there is time."""
        if self._left() > NUM_PROMPTS * _ANSWER_SECONDS:
            self._records.add("answers", **key, answers=answers(token_ids, process, _ANSWER_SECONDS))

    def _miss(self, key: dict[str, Any], why: str) -> None:
        print(f"  not measured: {why}", flush=True)
        self._records.add("missing", **key, why=without_folders(why))

    @contextmanager
    def _ready(self, server: Server, key: dict[str, Any]) -> Iterator[tuple[Target, RunningServer | None]]:
        """A server that is ready, and its process if this run has started it. Raises PeerError."""
        if server.url:
            self._records.add("start", **key, attempt="runs already", command=[server.url], versions=server.versions)
            yield Target(server.url, server.model, server.usage), None
            return
        with ExitStack() as stack:
            process = self._start(server, key, stack)
            yield Target(process.base_url, server.model, server.usage), process

    def _start(self, server: Server, key: dict[str, Any], stack: ExitStack) -> RunningServer:
        """Try the attempts in order, from the one that was ready before on. Raises PeerError if none is ready."""
        ready = [line["attempt"] for line in self._records.of_kind("start", peer=server.name, error=None)]
        attempts = [one for one in server.attempts if one.name == ready[-1]] if ready else list(server.attempts)
        for attempt in attempts:
            limit = min(attempt.seconds, self._left())
            if limit < min(START_SECONDS, attempt.seconds):
                raise PeerError(f"no time was left to start it: {attempt.name}")
            port = free_port()
            launch = attempt.launch(port)
            env = {name: without_folders(value) for name, value in launch.env.items()}
            about = {"attempt": attempt.name, "command": shown(launch.command, port), "env": env}
            print(f"round {key['round']}, {server.name}: {attempt.name}, at most {limit:.0f} s", flush=True)
            try:
                process = stack.enter_context(
                    running(launch, port, _cores(), self._log(server, attempt), limit, server.model)
                )
            except PeerError as error:
                print(f"  not ready: {error}", flush=True)
                self._records.add("start", **key, **about, seconds=limit, error=without_folders(str(error)))
                self._wait_for_memory()
                continue
            print(f"  ready after {process.start_seconds:.1f} s", flush=True)
            facts = {"facts": _facts(port), "versions": server.versions, "error": None}
            self._records.add("start", **key, **about, seconds=process.start_seconds, **facts)
            return process
        raise PeerError("no attempt to start it was ready in time")

    def _measure(
        self, target: Target, process: RunningServer | None, key: dict[str, Any], loads: Sequence[Load]
    ) -> bool:
        """Record each load as it ends. Raises PeerError if the server dies."""
        complete = True
        for load in (self._warm_up, *loads):
            if load.most_seconds > self._left():
                self._miss(key, f"{load.name}: no time was left")
                complete = False
                continue
            # The same for all servers; no prompt comes twice to one.
            number = 0 if load is self._warm_up else 1 + self._loads.index(load)
            figures = load.measure(target, 1000 * (key["round"] + 1) + 10 * number)
            if process is not None:
                process.check()
            if figures["failed"] or not figures["completed"]:
                reasons = "; ".join(figures["reasons"]) or "none was completed in time"
                self._miss(key, f"{load.name}: {figures['failed']} requests failed: {reasons}")
                complete = False
            elif load is not self._warm_up:
                self._records.add("load", **key, **load.key, **figures)
                print(f"  {load.name}: {figures['output_tokens_per_s']:.0f} output tokens/s", flush=True)
        return complete

    def _log(self, server: Server, attempt: Attempt) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{server.name}-{attempt.name}.log".replace(" ", "-").replace("/", "-")

    def _wait_for_memory(self) -> None:
        """Wait until the device's memory is free again, for some seconds at most."""
        ends = time.monotonic() + _FREE_SECONDS
        while self._used is not None and (_memory_in_use() or 0) > self._used + FREE_MIB and time.monotonic() < ends:
            time.sleep(0.5)


def machine() -> dict[str, Any]:
    """Describe the device and the client's machine; ``gpu`` is None where there is no NVIDIA GPU."""
    fields = ("name", "driver_version", "memory.total", "power.limit")
    found = output_of(*_QUERY[:2], f"{_QUERY[2]}={','.join(fields)}", "--id=0")
    values = [value.strip() for value in found.split(",")] if found else [None] * len(fields)
    names = ("gpu", "driver", "memory_mib", "power_limit_w")
    return {**dict(zip(names, values, strict=True)), "cores": len(_cores())}


def _memory_in_use() -> int | None:
    """Return the MiB in use on the device; None where nvidia-smi does not tell."""
    found = output_of(*_QUERY[:2], f"{_QUERY[2]}=memory.used", "--id=0")
    return int(found) if found and found.isdecimal() else None


def shown(command: Sequence[str], port: int) -> list[str]:
    """Return a command as it is kept: without this machine's folders, and without the port."""
    return [without_folders(word).replace(str(port), "PORT") for word in command]


def without_folders(text: str) -> str:
    """Return a text in which absolute paths have only their last names."""
    return re.sub(r"(?<![\w./:])/(?:[\w.@+~-]+/)+", "", text)


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _facts(port: int) -> list[str]:
    """Return what a server's /metrics says of its settings: nothing if it has no such page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            lines = page.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if "_info{" in line]
