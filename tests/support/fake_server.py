"""``python -m tests.support.fake_server DIRECTORY``: a server with batches around a fake engine; it prints its port."""

import asyncio
import socket
import sys
from pathlib import Path

import uvicorn

from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from tests.support.server_app import fake_engine


async def slowly(request: Request, index: int) -> None:
    await asyncio.sleep(0.002)


def main() -> None:
    app = create_app(fake_engine(pace=slowly), ServerConfig(batch_dir=Path(sys.argv[1]), max_batch_lines_in_flight=4))
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/v1\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
