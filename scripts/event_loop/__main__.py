"""CPU time that an API server needs to stream a token to many clients at once, with an engine that computes nothing.

Starts each server in a process of its own, streams /v1/completions to clients in this one, and reads the server
process's CPU time before and after. Rounds of several servers alternate. docs/event-loop.md has results.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).parents[2]
START_SECONDS = 180


@dataclass(frozen=True)
class Round:
    """``cpu``: seconds of the server; ``events``: chunks that came."""

    seconds: float
    cpu: float
    tokens: int
    events: int

    def row(self, name: str) -> str:
        cpu_us, rate = 1e6 * self.cpu / self.tokens, self.tokens / self.seconds
        return (
            f"{name:8} {rate:10.0f} {self.tokens / self.events:12.2f} {cpu_us:14.1f} {self.tokens / self.cpu:16.0f}"
            f" {100 * self.cpu / self.seconds:8.0f}"
        )


class Client(asyncio.Protocol):
    """Sends one request and counts what comes, with less work than ``CompletionsClient``, which parses each event: the
    server's processor time is what is measured, and the client shares its machine."""

    def __init__(self, request: bytes) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.events = 0
        self._request = request
        self._tail = b""
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._begun and not data.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(ConnectionError(data.decode(errors="replace")))
            return
        self._begun = True
        data = self._tail + data
        self.events += data.count(b"data: {")
        self._tail = data[-6:]  # too short for an event counted twice
        if b"[DONE]" in data and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


async def stream(port: int, clients: int, tokens: int) -> int:
    """Returns how many chunks came to all clients."""
    body = json.dumps(
        {"model": "m", "prompt": "def", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    ).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Client(head.encode() + b"\r\n\r\n" + body), "127.0.0.1", port)
        for _ in range(clients)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in made))
    for transport, _ in made:
        transport.close()
    return sum(protocol.events for _, protocol in made)


def measure(process: psutil.Process, port: int, clients: int, tokens: int) -> Round:
    before, started = process.cpu_times(), time.perf_counter()
    events = asyncio.run(stream(port, clients, tokens))
    seconds, after = time.perf_counter() - started, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    return Round(seconds, cpu, clients * tokens, events)


@contextmanager
def running(name: str, python: str, period: float) -> Iterator[tuple[psutil.Process, int]]:
    """A server at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, "-m", f"scripts.event_loop.{name}_server", str(port), str(period)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                asyncio.run(stream(port, 1, 2))
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{name} did not start; to see why: {' '.join(command)}") from error
                time.sleep(0.2)
        yield psutil.Process(process.pid), port
    finally:
        process.kill()
        process.wait()


def middle(rounds: Sequence[Round]) -> Round:
    return sorted(rounds, key=lambda one: one.cpu)[len(rounds) // 2]


def compared(ours: Sequence[Round], peers: Sequence[Round]) -> str:
    """The peer's CPU time of a token over ours, turn by turn."""
    ratios = [peer.cpu / peer.tokens / (our.cpu / our.tokens) for our, peer in zip(ours, peers, strict=True)]
    return f"vllm to jaxgen: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", help="the interpreter that has vLLM; without it only jaxgen is measured")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="of each client in a round")
    parser.add_argument("--steps-per-second", default="20,50,100", help="tokens a second for each client")
    parser.add_argument("--rounds", type=int, default=3, help="the median is shown")
    args = parser.parse_args()
    pythons = {"jaxgen": sys.executable} | ({"vllm": args.vllm_python} if args.vllm_python else {})
    print("server     tokens/s tokens/chunk  CPU us / token  tokens / CPU s    CPU %")
    for rate in map(float, args.steps_per_second.split(",")):
        found: dict[str, list[Round]] = {name: [] for name in pythons}
        with running("jaxgen", pythons["jaxgen"], 1 / rate) as ours:
            servers = {"jaxgen": ours}
            if "vllm" in pythons:
                with running("vllm", pythons["vllm"], 1 / rate) as peer:
                    servers["vllm"] = peer
                    rounds(servers, found, args)
            else:
                rounds(servers, found, args)
        print(f"-- {rate:g} steps/s")
        for name, all_rounds in found.items():
            print(middle(all_rounds).row(name), flush=True)
        if "vllm" in found:
            print(compared(found["jaxgen"], found["vllm"]), flush=True)


def rounds(
    servers: dict[str, tuple[psutil.Process, int]], found: dict[str, list[Round]], args: argparse.Namespace
) -> None:
    for process, port in servers.values():
        measure(process, port, args.clients, 16)
    for _ in range(args.rounds):
        for name, (process, port) in servers.items():
            found[name].append(measure(process, port, args.clients, args.tokens))


if __name__ == "__main__":
    main()
