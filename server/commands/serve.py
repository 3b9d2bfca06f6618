"""``jaxgen serve``: parse flags, start the engine, serve until told to stop."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware

from jaxgen.core.errors import ConfigError, one_line
from jaxgen.server.app import create_app
from jaxgen.server.commands import signals
from jaxgen.server.commands.listener import listening
from jaxgen.server.commands.run import Ending, ServedEngine, Server, run
from jaxgen.server.commands.tls import reload_certificate, tls_options
from jaxgen.server.connections.config import ConnectionConfig
from jaxgen.server.errors import with_prompts
from jaxgen.server.flags.access import warn_if_open
from jaxgen.server.flags.serve_options import engine_options, make_parser
from jaxgen.server.flags.server_flags import server_config
from jaxgen.server.log import set_up_logging
from jaxgen.server.requests import grammars
from jaxgen.terminal.environment import check_environment
from jaxgen.terminal.extras import naming_extras
from jaxgen.terminal.model_flags import hub_options

if TYPE_CHECKING:
    from jaxgen.engine.async_engine import AsyncEngine

logger = logging.getLogger(__name__)


def open_engine(args: Any) -> "AsyncEngine":
    """Return the engine that the flags ask for, not started yet. Raises ConfigError."""
    from jaxgen.assembly.load_engine import load_engine

    return load_engine(
        args.model,
        served_name=args.served_model_name,
        dtype=args.dtype,
        kernels=args.kernels,
        quantization=args.quantization,
        load_format=args.load_format,
        options=engine_options(args),
        hub=hub_options(args),
        tokenizer=args.tokenizer,
        generation_config=args.generation_config,
        chat_template=args.chat_template,
        pooling=args.pooling,
        cache_dir=args.cache_dir,
        compilation_cache=args.compilation_cache,
        progress=args.log_format == "plain",
    )


def serve_app(
    engine: ServedEngine,
    app: Starlette,
    listener: socket.socket,
    shutdown_timeout: float,
    tls: dict[str, Any] | None = None,
) -> Ending:
    """Serve ``app`` with ``engine``, which must be started and is stopped here. Return how it ended.

    ``tls``: uvicorn's TLS settings.
    """
    # uvicorn's warnings get our log format; our own middleware logs requests.
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "log_config": None}
    unix = listener.family == socket.AF_UNIX
    config = ConnectionConfig(app, app.state.config, unix=unix, **quiet, **(tls or {}))
    serving = _serve_until_signalled(engine, app, config, listener, shutdown_timeout)
    return asyncio.run(serving, loop_factory=config.get_loop_factory())


async def _serve_until_signalled(
    engine: ServedEngine, app: Starlette, config: ConnectionConfig, listener: socket.socket, shutdown_timeout: float
) -> Ending:
    stops: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def arrived(number: int) -> None:
        if number != signal.SIGHUP:
            stops.put_nowait(number)
        elif not any([app.state.keys.reload(), reload_certificate(config)]):
            logger.info("SIGHUP is ignored: there is no --api-key-file and no --ssl-certfile to read again")

    with signals.watch().delivered(lambda number: loop.call_soon_threadsafe(arrived, number), shutdown_timeout):
        return await run(engine, Server(config), app.state.lifecycle, listener, shutdown_timeout, stops)


@contextlib.contextmanager
def tracing(endpoint: str | None) -> Iterator[Middleware | None]:
    """Give tracing middleware, if it is configured. Remaining spans are sent at the end. Raises ConfigError."""
    if endpoint is None:
        yield None
        return
    if not endpoint.startswith(("http://", "https://")):
        shown = endpoint.rpartition("@")[2]  # without a user and a password
        raise ConfigError(f"--otlp-traces-endpoint {shown!r} must be a URL, as http://HOST:4318/v1/traces")
    with naming_extras("--otlp-traces-endpoint"):
        from jaxgen.server.middleware.tracing import TraceMiddleware, open_provider
    provider = open_provider(endpoint, version("jaxgen"))
    try:
        yield Middleware(TraceMiddleware, provider=provider)
    finally:
        provider.shutdown()


def main(argv: Sequence[str]) -> int:
    """Run ``jaxgen serve``; return 0 after it was told to stop, 1 when the engine died or hung, 2 when it could not
    start."""
    parser = make_parser()
    args = parser.parse_args(argv)
    check_environment(parser, os.environ)
    set_up_logging("%(asctime)s %(levelname)s %(name)s: %(message)s", level=args.log_level, form=args.log_format)
    if args.log_prompts:
        with_prompts.setLevel(logging.NOTSET)
    with contextlib.ExitStack() as until_end:
        ending = _serve(args, until_end)
    if not ending.engine_ended:
        signals.end_at_once(ending.code, ending.message)
    print(f"jaxgen serve: {ending.message}", file=sys.stderr)
    return ending.code


def prepare_grammars(engine: "AsyncEngine") -> None:
    """Once the engine is ready, make what the first request with a schema would wait for."""
    with contextlib.suppress(Exception):  # that it is not ready is told elsewhere
        engine.wait_ready()
        engine.prepare_grammars()
        grammars.prepare()


def _serve(args: Any, until_end: contextlib.ExitStack) -> Ending:
    try:
        config = server_config(args)
        tls = tls_options(args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs)
        traced = until_end.enter_context(tracing(args.otlp_traces_endpoint))
        listener = until_end.enter_context(listening(args.host, args.port, args.uds))
        warn_if_open(listener, config.access, certificates=args.ssl_ca_certs is not None)
        engine = open_engine(args)
        app = create_app(engine, config, tracing=traced)
    except ConfigError as error:
        return Ending(2, one_line(str(error)))
    engine.start()
    threading.Thread(target=prepare_grammars, args=(engine,), name="jaxgen-prepare", daemon=True).start()
    return serve_app(engine, app, listener, args.shutdown_timeout, tls)
