"""A server around a fake engine in a process of its own, so that its memory can be watched.

``python -m tests.support.door_process LIMITS``: LIMITS are fields of ServerConfig in JSON; it prints its URL.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import uvicorn

from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.door.config import DoorConfig
from tests.support.fakes import counts_up
from tests.support.paths import ROOT
from tests.support.server_app import fake_engine


@contextmanager
def door(**limits: Any) -> Iterator[tuple[str, psutil.Process]]:
    """Its URL and its process; killed at the end."""
    command = [sys.executable, "-m", "tests.support.door_process", json.dumps(limits)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the server did not start"
            yield url, psutil.Process(process.pid)
        finally:
            process.kill()


def main() -> None:
    limits = ServerConfig(**json.loads(sys.argv[1]))
    app = create_app(fake_engine(reply=counts_up), limits)
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(DoorConfig(app, limits, log_level="error", log_config=None)).run(sockets=[listener])


if __name__ == "__main__":
    main()
