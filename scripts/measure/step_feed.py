"""What readers of the step feed cost the server: the same load without readers and with some, in turn.

    .venv/bin/python -m scripts.measure.step_feed --readers 20 --pairs 10
    .venv/bin/python -m scripts.measure.step_feed --idle 60

Starts ``jaxgen serve`` with the embedded model in a process of its own, and reads that process's CPU time. Prints CPU
seconds for 1,000 generated tokens, pair by pair, of the process and of its event loop's thread alone: on a busy machine
the threads of steps take more or less by chance. ``--idle``: the share of a core that an idle server takes.
"""

import argparse
import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from scripts.event_loop.__main__ import stream

ROOT = Path(__file__).parents[2]
REQUEST = b"GET /steps HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.contextmanager
def running(clients: int) -> Iterator[tuple[psutil.Process, int]]:
    """A server at a free port, which it is told and prints."""
    options = ["--port", "0", "--served-model-name", "m", "--max-num-seqs", str(clients), "--log-level", "warning"]
    command = [sys.executable, "-m", "jaxgen.server.cli", "serve", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        if found is None:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        yield psutil.Process(process.pid), int(found[1])
    finally:
        process.terminate()
        process.wait()


async def read(port: int) -> None:
    """Read the feed and throw it away, until cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    while await reader.read(2**16):
        pass
    raise SystemExit("the feed ended")


@contextlib.asynccontextmanager
async def readers(port: int, count: int) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(read(port)) for _ in range(count)]
    await asyncio.sleep(0.5)  # what the journal holds is sent first
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def event_loop_cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of the main thread."""
    (times,) = [one for one in process.threads() if one.id == process.pid]
    return float(times.user_time + times.system_time)


@dataclass(frozen=True)
class Round:
    """CPU seconds of 1,000 tokens."""

    process: float
    event_loop: float

    def over(self, other: "Round") -> float:
        """Return by how many percent this is more."""
        return 100 * (self.process / other.process - 1)

    def event_loop_over(self, other: "Round") -> float:
        """Return what the event loop's thread took more, in percent of the process."""
        return 100 * (self.event_loop - other.event_loop) / other.process


async def loaded(process: psutil.Process, port: int, args: argparse.Namespace, count: int) -> Round:
    """Generate beside ``count`` readers."""
    async with readers(port, count):
        before, before_loop = cpu(process), event_loop_cpu(process)
        await stream(port, args.clients, args.tokens)
        thousands = args.clients * args.tokens / 1000
        return Round((cpu(process) - before) / thousands, (event_loop_cpu(process) - before_loop) / thousands)


async def idle(process: psutil.Process, port: int, seconds: float, count: int) -> float:
    """Return the share of a core in percent."""
    async with readers(port, count):
        before = cpu(process)
        await asyncio.sleep(seconds)
        return 100 * (cpu(process) - before) / seconds


async def pairs(process: psutil.Process, port: int, args: argparse.Namespace) -> None:
    all_over, loop_over = [], []
    await loaded(process, port, args, 0)
    print("CPU seconds of 1,000 tokens (of the event loop)")
    for number in range(args.pairs):
        order = (0, args.readers) if number % 2 == 0 else (args.readers, 0)
        found = {count: await loaded(process, port, args, count) for count in order}
        without, beside = found[0], found[args.readers]
        all_over.append(beside.over(without))
        loop_over.append(beside.event_loop_over(without))
        print(
            f"without {without.process:.3f} ({without.event_loop:.3f})   {args.readers} readers {beside.process:.3f}"
            f" ({beside.event_loop:.3f})   {all_over[-1]:+.2f} % ({loop_over[-1]:+.2f} %)",
            flush=True,
        )
    print(f"process {spread(all_over)}\nevent loop, in percent of the process {spread(loop_over)}")


def spread(found: Sequence[float]) -> str:
    return f"median {statistics.median(found):+.2f} %, from {min(found):+.2f} % to {max(found):+.2f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--clients", type=int, default=16, help="that generate at a time (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=900, help="of each (default %(default)s)")
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="measure an idle server instead")
    args = parser.parse_args()
    with running(args.clients) as (process, port):
        if args.idle is None:
            asyncio.run(pairs(process, port, args))
            return
        for count in (0, 1, 20):
            share = asyncio.run(idle(process, port, args.idle, count))
            print(f"idle, {count} readers: {share:.2f} % of a core")


if __name__ == "__main__":
    main()
