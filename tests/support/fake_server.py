"""A server around a fake engine in a process of its own, so that it can be killed, and its memory watched.

``python -m tests.support.fake_server STEP LIMITS``: a token takes STEP seconds, and LIMITS are groups of ServerConfig,
``connections`` and ``batches``, in JSON. It prints its URL, without a slash at its end.
"""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import uvicorn

from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.connections.config import ConnectionConfig
from jaxgen.server.limits import Batches, Connections
from tests.support.fakes import counts_up
from tests.support.paths import ROOT
from tests.support.server_app import fake_engine


@contextmanager
def fake_server(step_seconds: float = 0.0, **limits: dict[str, Any]) -> Iterator[tuple[str, psutil.Process]]:
    """Its URL and its process; killed at the end. Paths in ``limits`` are texts."""
    command = [sys.executable, "-m", "tests.support.fake_server", str(step_seconds), json.dumps(limits)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the server did not start"
            yield url, psutil.Process(process.pid)
        finally:
            process.kill()


def main() -> None:
    step_seconds, fields = float(sys.argv[1]), json.loads(sys.argv[2])
    batches = fields.get("batches", {})
    if "batch_dir" in batches:
        batches["batch_dir"] = Path(batches["batch_dir"])
    config = ServerConfig(connections=Connections(**fields.get("connections", {})), batches=Batches(**batches))

    async def pace(request: Request, index: int) -> None:
        await asyncio.sleep(step_seconds)

    app = create_app(fake_engine(reply=counts_up, **({"pace": pace} if step_seconds else {})), config)
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(ConnectionConfig(app, config, log_level="error", log_config=None)).run(sockets=[listener])


if __name__ == "__main__":
    main()
