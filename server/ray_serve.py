"""Replicas of Ray Serve: an application around ``create_app``, with the flags of ``jaxgen serve``. A composition root.

Nothing else imports Ray, which the extra ``ray`` brings.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, NoReturn

from starlette.applications import Starlette

from jaxgen.core.errors import ConfigError, one_line
from jaxgen.server.app import create_app
from jaxgen.server.commands.run import STEP_SECONDS, ServedEngine, wait_for_death, wait_idle
from jaxgen.server.commands.serve import open_engine, tracing
from jaxgen.server.flags.serve_options import ServeLine, make_parser
from jaxgen.server.flags.server_flags import server_config
from jaxgen.server.log import set_up_logging
from jaxgen.server.middleware.lifecycle import Lifecycle
from jaxgen.terminal.environment import check_environment
from jaxgen.terminal.extras import naming_extras

logger = logging.getLogger(__name__)

Flags = Mapping[str, Any]
"""Flags of ``jaxgen serve`` and their values, as in the file of ``--config``: with dashes or underscores, no leading
ones."""

HERE = "jaxgen.server.ray_serve"
OF_THE_PROXY = frozenset(
    {
        *("host", "port", "uds", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "forwarded_allow_ips"),
        *("header_timeout", "write_timeout", "timeout_keep_alive", "max_connections_per_address"),
    }
)
"""Flags about connections, of which Ray's proxy has all."""
ENDING_SECONDS = STEP_SECONDS + 5.0
"""Time that a replica gets to end, beyond what its requests get."""
TELLING_SECONDS = 0.25
"""Time in which Ray's proxy reads the errors by which a dead engine's requests end."""


def build_app(flags: dict[str, Any]) -> Any:
    """Return the Ray Serve application, as ``serve run`` and Serve's configuration files call it: with their arguments.

    Raises ConfigError.
    """
    return application(flags)


def application(flags: Flags, **options: Any) -> Any:
    """Return the Ray Serve application whose replicas each serve as ``jaxgen serve`` does with these flags.

    ``options``: those of ``ray.serve.deployment``: ``num_replicas`` or ``autoscaling_config``, ``ray_actor_options``
    and so on. Raises ConfigError for a flag that is none, or has no meaning behind Ray's proxy, and without Ray.
    """
    with naming_extras(HERE):
        from ray import serve
    args = parse_flags(flags)
    defaults = {
        "name": "jaxgen",
        # Ray's own is 5, of which an engine sees no batch; the queue's bounds are the engine's.
        "max_ongoing_requests": args.max_connections,
        "graceful_shutdown_timeout_s": args.shutdown_timeout + ENDING_SECONDS,
    }
    kind: Any = serve.deployment(**(defaults | options))(serve.ingress()(Replica))
    return kind.bind(dict(flags))


class Replica:
    """An engine and the app around it, in a process that Ray starts, asks after, drains and ends."""

    async def __init__(self, flags: Flags) -> None:  # type: ignore[misc]    # Ray awaits it
        """Return when the engine is ready; Ray sends no request before."""
        self._until_end = ExitStack()
        args = parse_flags(flags)
        set_up_logging("%(asctime)s %(levelname)s %(name)s: %(message)s", level=args.log_level, form=args.log_format)
        traced = self._until_end.enter_context(tracing(args.otlp_traces_endpoint))
        config = server_config(args)
        engine = await asyncio.to_thread(open_engine, args)
        self._served = create_app(engine, config, tracing=traced)
        self._until_end.callback(engine.stop, STEP_SECONDS)
        engine.start()
        await asyncio.to_thread(engine.wait_ready)
        ending = threading.Event()
        self._until_end.callback(ending.set)  # the first of what __del__ does
        self._watch = asyncio.create_task(_end_with(engine, self._served.state.lifecycle, ending))

    def __serve_build_asgi_app__(self) -> Starlette:
        """Return the app, as Ray asks for it, to run its lifespan and send it requests."""
        return self._served

    async def check_health(self) -> None:
        """Raise RuntimeError when the process is of no use any more, at which Ray starts another."""
        trouble = self._served.state.lifecycle.trouble()
        if trouble is not None:
            raise RuntimeError(trouble)

    def __del__(self) -> None:
        """End the engine. Ray calls this when the last request has ended, and Python when ``__init__`` has raised."""
        self._until_end.close()


async def _end_with(engine: ServedEngine, lifecycle: Lifecycle, ending: threading.Event) -> None:
    """End the process soon after its engine has died, unless ``ending`` is set; Ray starts another.

    Ray would ask after its health three times first, 10 s apart, and send it requests meanwhile, which it refuses.
    """
    await wait_for_death(engine)
    if ending.is_set():
        return
    logger.error("the engine is dead, and its process ends: %s", engine.status().reason)
    with suppress(TimeoutError):
        async with asyncio.timeout(STEP_SECONDS):
            await wait_idle(lifecycle)
    await asyncio.sleep(TELLING_SECONDS)
    os._exit(1)  # Ray's own end of a process waits for its requests


def parse_flags(flags: Flags) -> Any:
    """Return what the parser of ``jaxgen serve`` makes of the flags; the environment sets the others.

    Raises ConfigError.
    """
    parser = make_parser(kind=_Line)
    words: list[str] = []
    for name, value in flags.items():
        key = name.replace("_", "-")
        flag = f"--{key}"
        if not parser.has(flag):
            raise ConfigError(f"{name} is not a flag{parser.hint(flag).replace('--', '')}")
        if name.replace("-", "_") in OF_THE_PROXY:
            raise ConfigError(
                f"{name} has no meaning here: Ray's proxy has the connections, so set http_options of Ray Serve"
            )
        words += parser.words(key, _word(name, value))
    args = parser.parse_args(words)
    check_environment(parser, os.environ)
    return args


def _word(name: str, value: object) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    if value is None or isinstance(value, dict):
        raise ConfigError(f"{name} must be a text, a number, true, false or a list, not {value!r}")
    return str(value)


class _Line(ServeLine):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(one_line(message))
