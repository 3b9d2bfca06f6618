"""Two live replicas behind SMG, any of which a test may end; it finds both alive again at its beginning."""

import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.clients.conftest import MODEL, ROOT

SECONDS = 120
"""Most time for anything that a test waits for."""
SHARED = ("--stream-secret", "what all replicas share")
WORKER = "x-smg-routed-worker-id"
"""The router's header that names the replica."""


def until(holds: Callable[[], bool], what: str, seconds: float = SECONDS, every: float = 0.02) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(every)


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


@dataclass
class Replica:
    """A server that comes back at the same port, where the router looks for it."""

    python: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        command = (str(self.python.absolute()), "-m", "jaxgen.server.cli", "serve", "--port", str(self.port), *SHARED)
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def wait(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        assert self.url in self.process.stdout.readline(), "it has not started"

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(SECONDS)
        self.process.stdout.close()
        return code

    def metric(self, name: str) -> float:
        with urlopen(f"{self.url}/metrics", timeout=SECONDS) as answer:
            found = re.findall(rf"^jaxgen_{name}\{{.*\}} (\S+)$", answer.read().decode(), re.MULTILINE)
        return sum(float(value) for value in found)


@dataclass
class Fleet:
    replicas: list[Replica]
    port: int = field(default_factory=free_port)

    def start_router(self, log: Path) -> subprocess.Popen[bytes]:
        """It asks after each replica every second, and believes one answer."""
        command: list[Any] = [Path(sys.executable).parent / "smg", "launch", "--host", "127.0.0.1", "--port", self.port]
        command += ["--worker-urls", *(replica.url for replica in self.replicas), "--policy", "cache_aware"]
        command += ["--health-check-interval-secs", 1, "--health-failure-threshold", 1]
        command += ["--health-success-threshold", 1, "--worker-startup-check-interval", 1]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", free_port()]
        return subprocess.Popen([str(word) for word in command], stdout=log.open("wb"), stderr=subprocess.STDOUT)

    def make_whole(self) -> None:
        """Start what has ended, and wait for the router to use all of it."""
        dead = [replica for replica in self.replicas if not replica.alive]
        for replica in dead:
            replica.start()
        for replica in dead:
            replica.wait()
        until(lambda: self.healthy() == {replica.url for replica in self.replicas}, "the router has not all replicas")

    def healthy(self) -> set[str]:
        """Replicas that the router uses."""
        url = f"http://127.0.0.1:{self.port}/workers"
        with suppress(URLError, ConnectionError), urlopen(url, timeout=SECONDS) as answer:
            return {one["url"] for one in json.load(answer)["workers"] if one["is_healthy"]}
        return set()

    def ask(self, path: str, **body: Any) -> tuple[Any, str]:
        """The answer, and the URL of the replica that gave it; urllib raises for a status that is no success."""
        request = Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps({"model": MODEL, **body}).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer), answer.headers[WORKER]


@dataclass
class Stream:
    """A streamed completion: its text as far as it came, and whether it came to its end."""

    fleet: Fleet
    prompt: str
    num_tokens: int
    by_header: bool = True
    """Whether it goes on by the header Last-Event-ID; else by its body."""
    text: str = ""
    begun: bool = False
    whole: bool = False
    status: int = 0
    url: str = ""
    """Of the replica that it comes from."""
    last: str = ""
    """The id of the last event that came; ``run`` goes on after it."""

    def run(self) -> None:
        with suppress(ConnectionError, http.client.HTTPException, TimeoutError):
            for data, event_id in self.events():
                self.begun = True
                if data == "[DONE]":
                    self.whole = True
                    break
                event = json.loads(data)
                if "error" in event:
                    break
                self.text += "".join(choice["text"] for choice in event["choices"])
                self.last = event_id

    def events(self) -> Generator[tuple[str, str]]:
        """The data and the id of each event that came whole."""
        fields: dict[str, str] = {}
        for line in self._lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            else:
                yield fields.pop("data"), fields.pop("id", "")

    def _lines(self) -> Iterator[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.fleet.port, timeout=SECONDS)
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": self.prompt,
            "max_tokens": self.num_tokens,
            "ignore_eos": True,
            "return_event_ids": True,
        }
        headers = {"Content-Type": "application/json"}
        if self.last and self.by_header:
            headers["Last-Event-ID"] = self.last
        elif self.last:
            body["resume"] = {"last_event_id": self.last}
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps({**body, "temperature": 0, "stream": True}), headers
            )
            answer = connection.getresponse()
            self.status, self.url = answer.status, answer.getheader(WORKER, "")
            for raw in answer:
                yield raw.decode().strip()
        finally:
            connection.close()


def begin(streams: list[Stream]) -> list[Thread]:
    threads = [Thread(target=stream.run, daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[Thread], seconds: float = SECONDS) -> None:
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive()
