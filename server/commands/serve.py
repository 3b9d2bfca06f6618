"""``jaxgen serve``: parse flags, start the engine, serve until told to stop."""

import asyncio
import contextlib
import json
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.stats import EngineStats
from jaxgen.server.app import create_app
from jaxgen.server.commands.environment import check_environment
from jaxgen.server.commands.serve_options import engine_options, make_parser, server_config
from jaxgen.server.commands.tls import tls_options
from jaxgen.server.door.config import DoorConfig
from jaxgen.server.errors import with_prompts
from jaxgen.server.log import set_up_logging
from jaxgen.server.middleware.lifecycle import Lifecycle

if TYPE_CHECKING:
    from jaxgen.engine.async_engine import AsyncEngine

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05


def _open_engine(args: Any) -> "AsyncEngine":
    from jaxgen.assemble import load_engine

    return load_engine(
        args.model,
        served_name=args.served_model_name,
        dtype=args.dtype,
        kernels=args.kernels,
        options=engine_options(args),
        chat_template=args.chat_template,
        pooling=args.pooling,
        cache_dir=args.cache_dir,
        compilation_cache=args.compilation_cache,
        progress=args.log_format == "plain",
    )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: on SIGTERM they would stop it before running requests are done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


async def _run(
    engine: "AsyncEngine",
    config: uvicorn.Config,
    lifecycle: Lifecycle,
    listener: socket.socket,
    shutdown_timeout: float,
) -> int:
    """Serve until SIGTERM or SIGINT (0), or until the engine dies (1; 2 if it never was ready).

    The first signal drains: /ready fails, new requests get 503, running ones may finish within the timeout. A second
    signal stops at once.
    """
    server = _Server(config)
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    announcing = asyncio.create_task(_announce(engine, listener, "https" if config.is_ssl else "http"))
    draining = asyncio.create_task(_drain(signals, lifecycle, shutdown_timeout))
    died = asyncio.create_task(_wait_for_death(engine))
    done, _ = await asyncio.wait({serving, draining, died}, return_when=asyncio.FIRST_COMPLETED)
    if died in done:
        print(f"jaxgen serve: {engine.status().reason}", file=sys.stderr)
    was_ready = announcing.done()
    server.should_exit = True
    for task in (announcing, draining, died):
        task.cancel()
    await serving
    if draining in done:
        return 0
    return 1 if was_ready else 2


async def _announce(engine: "AsyncEngine", listener: socket.socket, scheme: str) -> None:
    while engine.status().state != "ready":
        await asyncio.sleep(POLL_SECONDS)
    host, port, *_ = listener.getsockname()
    base = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    print(_ready_line(engine.model, base), flush=True)
    print(_pace_line(engine.stats()), flush=True)


def _ready_line(model: ModelInfo, base: str) -> str:
    body = json.dumps({"model": model.name, "prompt": "def main():", "max_tokens": 32})
    what = f"{model.name} ({model.note})" if model.note else model.name
    return (
        f"jaxgen serves {what} at {base}/v1. Try: "
        f"curl {base}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


def _pace_line(stats: EngineStats) -> str:
    return (
        f"99 of 100 steps take {1000 * stats.longest_step_seconds:.3g} ms at most, as does the time between tokens; "
        f"the first comes after {stats.first_token_seconds_per_1000:.3g} s for 1,000 tokens of a prompt. /metrics has "
        "both for the load of the moment."
    )


async def _drain(signals: "asyncio.Queue[int]", lifecycle: Lifecycle, timeout: float) -> None:
    await signals.get()
    lifecycle.draining = True
    logger.info("finishing the requests under way (signal again to stop at once)")
    idle = asyncio.create_task(_wait_idle(lifecycle))
    again = asyncio.create_task(signals.get())
    await asyncio.wait({idle, again}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    idle.cancel()
    again.cancel()


async def _wait_idle(lifecycle: Lifecycle) -> None:
    while lifecycle.num_requests > 0:
        await asyncio.sleep(POLL_SECONDS)


async def _wait_for_death(engine: "AsyncEngine") -> None:
    while engine.status().state != "dead":
        await asyncio.sleep(POLL_SECONDS)


def serve_app(
    engine: "AsyncEngine",
    app: Starlette,
    listener: socket.socket,
    shutdown_timeout: float,
    tls: dict[str, Any] | None = None,
) -> int:
    """Serve ``app`` with ``engine``, which must be started and is stopped here. Return the process's exit code.

    ``tls``: uvicorn's TLS settings.
    """
    # uvicorn's warnings get our log format; our own middleware logs requests.
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "log_config": None}
    config = DoorConfig(app, app.state.config, timeout_graceful_shutdown=1, **quiet, **(tls or {}))
    run = _run(engine, config, app.state.lifecycle, listener, shutdown_timeout)
    try:
        return asyncio.run(run, loop_factory=config.get_loop_factory())
    finally:
        engine.stop()


@contextlib.contextmanager
def _tracing(endpoint: str | None) -> Iterator[Middleware | None]:
    """Give tracing middleware, if it is configured. Remaining spans are sent at the end. Raises ConfigError."""
    if endpoint is None:
        yield None
        return
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-traces-endpoint {endpoint!r} must be a URL, as http://HOST:4318/v1/traces")
    try:
        from jaxgen.server.middleware.tracing import TraceMiddleware, open_provider
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigError(
            "--otlp-traces-endpoint needs OpenTelemetry: pip install -e '.[otel]' in the checkout"
        ) from error
    provider = open_provider(endpoint, version("jaxgen"))
    try:
        yield Middleware(TraceMiddleware, provider=provider)
    finally:
        provider.shutdown()


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises ConfigError."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"cannot listen at --host {host} --port {port}: {error.strerror or error}") from error


def main(argv: Sequence[str]) -> int:
    """Run ``jaxgen serve``; return 0 after a clean stop, 1 when the engine died, 2 when it could not start."""
    parser = make_parser()
    args = parser.parse_args(argv)
    check_environment(parser, os.environ)
    set_up_logging("%(asctime)s %(levelname)s %(name)s: %(message)s", level=args.log_level, form=args.log_format)
    if args.log_prompts:
        with_prompts.setLevel(logging.NOTSET)
    with contextlib.ExitStack() as until_end:
        return _serve(args, until_end)


def _serve(args: Any, until_end: contextlib.ExitStack) -> int:
    try:
        config = server_config(args)
        tls = tls_options(args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs)
        tracing = until_end.enter_context(_tracing(args.otlp_traces_endpoint))
        listener = listen(args.host, args.port)
        engine = _open_engine(args)
        app = create_app(engine, config, tracing=tracing)
    except ConfigError as error:
        print(f"jaxgen serve: {error}", file=sys.stderr)
        return 2
    engine.start()
    return serve_app(engine, app, listener, args.shutdown_timeout, tls)
