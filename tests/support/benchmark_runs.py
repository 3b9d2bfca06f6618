"""Short runs of the benchmark command against a real server around a fake engine."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxgen.server import cli
from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from tests.support.fakes import FakeEngine
from tests.support.live_server import serve

SMALL = ("--prompt-mean", "20", "--output-mean", "8", "--stagger", "0", "--timeout", "60", "--max-seconds", "60")


def main(flags: Sequence[str]) -> int:
    """The exit code of ``jaxgen benchmark``."""
    return cli.main(["benchmark", *flags])


@contextmanager
def served(engine: FakeEngine, config: ServerConfig | None = None) -> Iterator[str]:
    with serve(create_app(engine, config or ServerConfig())) as url:
        yield f"{url}/v1"


def measure(engine: FakeEngine, output: Path, *flags: str, rc: int = 0) -> dict[str, Any]:
    """The JSON line of one run."""
    with served(engine) as url:
        assert main(["--base-url", url, "--output", str(output), *SMALL, *flags]) == rc
    return last_run(output)


def last_run(output: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(output.read_text().splitlines()[-1])
    return run
