"""Time the starts of ``jaxgen serve`` with an empty cache directory and after that, and tell its memory. Linux only.

.venv/bin/python -m scripts.measure.start_time --starts 3
.venv/bin/python -m scripts.measure.start_time --tokens 1000 --fill 25600 -- --model DIR --num-blocks 400

A line for each start has the seconds until /ready, the CPU seconds of the server and its children, and its resident
memory then. With --tokens it also has the memory after answers of that many tokens in all, and with --fill after
prompts of that many.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SERVE = "import sys; from jaxgen.server.commands.serve import main; sys.exit(main(sys.argv[1:]))"
PATIENCE = 600.0
"""Seconds that a start may take."""
ANSWER, PROMPT = 250, 1000
"""Tokens of an answer, and of a prompt that fills the cache."""
IDS = 100, 2000
"""Of the tokens of such a prompt: every model has them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=2, help="servers that start one after the other")
    parser.add_argument("--tokens", type=int, default=0, help="tokens to generate before the memory is told again")
    parser.add_argument("--fill", type=int, default=0, help="tokens of prompts to send before that is done once more")
    parser.add_argument("--cache-dir", help="directory to begin with; an empty one by default")
    parser.add_argument("serve", nargs="*", metavar="-- FLAGS", help="flags of jaxgen serve")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jaxgen-start-") as empty:
        for number in range(1, args.starts + 1):
            print(f"start {number}: {measure(args.serve, args.cache_dir or empty, args.tokens, args.fill)}", flush=True)


def measure(flags: list[str], cache_dir: str, tokens: int, fill: int) -> str:
    """Start a server, and end it; return a line of what was measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SERVE, "--host", "127.0.0.1", "--port", str(port), "--cache-dir", cache_dir]
    base, began = f"http://127.0.0.1:{port}", time.monotonic()
    server = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_ready(server, base, began)
        figures = f"{time.monotonic() - began:.1f} s, {cpu_seconds(server.pid):.1f} CPU s, {resident(server.pid)} MiB"
        if tokens:
            for _ in range(-(-tokens // ANSWER)):
                generate(base)
            figures += f", after {tokens} tokens {resident(server.pid)} MiB"
        if fill:
            for _ in range(-(-fill // PROMPT)):
                send(base, {"prompt": [random.randint(*IDS) for _ in range(PROMPT)], "max_tokens": 1})
            figures += f", after prompts of {fill} {resident(server.pid)} MiB"
        return figures
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def wait_ready(server: "subprocess.Popen[bytes]", base: str, began: float) -> None:
    while time.monotonic() - began < PATIENCE:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with status {server.returncode}")
        try:
            urllib.request.urlopen(f"{base}/ready").close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"the server was not ready after {PATIENCE:.0f} s")


def generate(base: str) -> None:
    send(base, {"prompt": f"def main{time.monotonic_ns()}():", "max_tokens": ANSWER, "ignore_eos": True})


def send(base: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{base}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).read()


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Return the resident memory of a process in MiB."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) >> 10


if __name__ == "__main__":
    main()
