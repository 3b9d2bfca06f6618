"""``jaxgen serve`` in a process of its own, as users run it."""

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from tests.support.paths import ROOT

START_SECONDS = 120
SMALL = ("--max-model-len", "512", "--token-budget", "32", "--max-num-seqs", "4")


@dataclass
class ServerProcess:
    process: subprocess.Popen[str]
    line: str
    """What it prints when it is ready."""
    errors: IO[str]

    @property
    def url(self) -> str:
        """It ends with /v1."""
        found = re.search(r"https?://[\w.:\[\]]+/v1", self.line)
        assert found, self.line
        return found[0]

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def log(self) -> str:
        """All it has said on stderr until now."""
        self.errors.seek(0)
        return self.errors.read()


@contextmanager
def served(
    *arguments: str, environment: dict[str, str] | None = None, module: tuple[str, ...] = ("jaxgen.server.cli",)
) -> Iterator[ServerProcess]:
    """A server that is ready, at a free port; killed at the end. ``module``: what is run as jaxgen, with its own
    arguments."""
    command = [sys.executable, "-m", *module, "serve", "--port", "0", *SMALL, *arguments]
    # A file: a pipe that nobody reads stops the server when it is full of log lines.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            server = ServerProcess(process, process.stdout.readline(), errors)
            watchdog.cancel()
            assert server.line, server.log()
            yield server
        finally:
            watchdog.cancel()
            process.kill()
            process.communicate()
