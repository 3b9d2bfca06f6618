"""``jaxgen serve``: parse flags, start the engine, serve until told to stop."""

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import configargparse
import uvicorn
from starlette.applications import Starlette

from jaxgen.config import DTYPES, KERNEL_CHOICES, KV_RESIDENCIES, OFFLOAD_POLICIES, ConfigError, EngineOptions
from jaxgen.offload.host_dtype import HOST_DTYPES
from jaxgen.request import ModelInfo
from server.app import create_app
from server.config import DEFAULT_CONFIG, ServerConfig
from server.lifecycle import Lifecycle
from server.log import set_up_logging

if TYPE_CHECKING:
    from jaxgen.async_engine import AsyncEngine

POLL_SECONDS = 0.05
LIMITS = {
    "max_body_bytes": "longest body",
    "max_prompts": "most prompts",
    "max_n": "largest n and best_of",
    "max_choices": "most completions, prompts x best_of",
    "max_stop_length": "longest stop string, characters",
    "max_stop_token_ids": "most stop_token_ids",
    "max_logit_bias": "most logit_bias entries",
    "max_queued_requests": "most completions that wait for their first token; beyond, 429",
    "max_queued_tokens": "most tokens in their prompts; beyond, 429",
}
"""Fields of ServerConfig that have a flag of their own."""


def make_parser() -> configargparse.ArgumentParser:
    """Every flag can also be set as an environment variable JAXGEN_<FLAG>."""
    parser = configargparse.ArgumentParser(
        prog="jaxgen serve",
        description="Serve a model at /v1/completions and /v1/chat/completions.",
        auto_env_var_prefix="JAXGEN_",
        formatter_class=configargparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    model = parser.add_argument_group("model")
    model.add_argument("--model", help="directory or hub id; without it the embedded default")
    model.add_argument("--served-model-name", help="name in the API (default: as given to --model)")
    model.add_argument(
        "--dtype",
        choices=("auto", *DTYPES),
        default="auto",
        help="auto: the checkpoint's own, or float32 where the device computes that faster",
    )
    model.add_argument("--chat-template", type=Path, help="file with a Jinja template (default: the model's own)")
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--kernels",
        choices=KERNEL_CHOICES,
        default="auto",
        help="auto: the fastest for the device; xla: XLA's everywhere",
    )
    engine.add_argument("--max-model-len", type=int, help="longest prompt + answer, tokens (default: what fits)")
    engine.add_argument(
        "--token-budget",
        "--max-num-batched-tokens",
        type=int,
        help="tokens in every step (default: as jaxgen tune measured, else a rule for the device)",
    )
    engine.add_argument("--max-num-seqs", type=int, help="most sequences in a step")
    engine.add_argument("--block-size", type=int, help="tokens in a block of the KV cache")
    engine.add_argument("--num-blocks", type=int, help="blocks in the KV cache (default: what fits)")
    engine.add_argument(
        "--gpu-memory-utilization", type=float, default=0.9, help="share of an accelerator's memory to use"
    )
    engine.add_argument(
        "--enable-prefix-caching",
        dest="prefix_caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the KV of full blocks for later requests that begin alike",
    )
    engine.add_argument(
        "--kv-offloading-size",
        type=float,
        default=0.0,
        help="GiB of host memory for KV blocks that leave the device, or for all (0: none)",
    )
    engine.add_argument(
        "--kv-offload-policy",
        choices=OFFLOAD_POLICIES,
        default="plan",
        help="how they come back: as measured rates say, all copied, or all computed again",
    )
    engine.add_argument(
        "--kv-residency",
        choices=KV_RESIDENCIES,
        default="device",
        help="where the KV cache is; host: in --kv-offloading-size GiB of host memory, and each step brings it to the "
        "device layer by layer; auto: there if the device cannot hold the longest sequence",
    )
    engine.add_argument(
        "--kv-host-dtype",
        choices=HOST_DTYPES,
        default="auto",
        help="auto: as on the device, to the bit; int8, int4: quantised by groups, with an error",
    )
    engine.add_argument(
        "--kv-offload-inputs",
        action="store_true",
        help="keep layer inputs too, from which K and V are made again: fewer bytes to copy back where attention has "
        "as many KV heads as heads, more memory on device and host",
    )
    engine.add_argument(
        "--single-shape",
        action="store_true",
        help="one program for all steps, even where a narrow one for decodes is faster and gives the same bits",
    )
    engine.add_argument("--seed", type=int, help="makes requests without a seed repeatable, in order of arrival")
    cache = parser.add_argument_group("cache")
    cache.add_argument("--cache-dir", type=Path, help="keeps what speeds up the next start (default: the user's cache)")
    cache.add_argument(
        "--no-compilation-cache",
        dest="compilation_cache",
        action="store_false",
        help="compile at every start, and keep no compiled program",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1")
    server.add_argument("--port", type=int, default=8000)
    server.add_argument(
        "--api-key",
        action="append",
        help="asked of every request; may be repeated; better set as JAXGEN_API_KEY, since ps shows flags",
    )
    server.add_argument(
        "--api-key-file", type=Path, help="further keys, one a line; read again when it changes, without a restart"
    )
    limits = parser.add_argument_group("limits")
    for name, what in LIMITS.items():
        limits.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(DEFAULT_CONFIG, name), help=what)
    server.add_argument("--shutdown-timeout", type=float, default=30.0, help="seconds running requests get at SIGTERM")
    return parser


def _engine_options(args: Any) -> EngineOptions:
    names = EngineOptions.__dataclass_fields__
    return EngineOptions(**{name: getattr(args, name) for name in names})


def _open_engine(args: Any) -> "AsyncEngine":
    # Read by JAX when it is first imported, hence here and not below the composition root.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", str(args.gpu_memory_utilization))
    from jaxgen.assemble import open_engine

    return open_engine(
        args.model,
        served_name=args.served_model_name,
        dtype=args.dtype,
        kernels=args.kernels,
        options=_engine_options(args),
        chat_template=args.chat_template,
        cache_dir=args.cache_dir,
        compilation_cache=args.compilation_cache,
        progress=True,
    )


class _Server(uvicorn.Server):
    """uvicorn that leaves signals to us: its own answer to SIGTERM closes the door before requests are done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


async def _run(engine: "AsyncEngine", app: Starlette, listener: socket.socket, shutdown_timeout: float) -> int:
    """Serve until SIGTERM or SIGINT (0), or until the engine dies (1; 2 if it never was ready).

    The first signal drains: /ready says no, new requests get 503, running ones may finish within the timeout. A second
    one ends at once.
    """
    server = _Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    announcing = asyncio.create_task(_announce(engine, listener))
    draining = asyncio.create_task(_drain(signals, app.state.lifecycle, shutdown_timeout))
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


async def _announce(engine: "AsyncEngine", listener: socket.socket) -> None:
    while engine.status().state != "ready":
        await asyncio.sleep(POLL_SECONDS)
    host, port, *_ = listener.getsockname()
    print(_ready_line(engine.model, f"[{host}]" if ":" in host else host, port), flush=True)


def _ready_line(model: ModelInfo, host: str, port: int) -> str:
    base = f"http://{host}:{port}"
    body = json.dumps({"model": model.name, "prompt": "def main():", "max_tokens": 32})
    what = f"{model.name} ({model.note})" if model.note else model.name
    return (
        f"jaxgen serves {what} at {base}/v1. Try: "
        f"curl {base}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    )


async def _drain(signals: "asyncio.Queue[int]", lifecycle: Lifecycle, timeout: float) -> None:
    await signals.get()
    lifecycle.draining = True
    print("jaxgen: finishing the requests under way (signal again to stop at once)", file=sys.stderr, flush=True)
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


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"cannot listen at --host {host} --port {port}: {error.strerror or error}") from error


def main(argv: Sequence[str]) -> int:
    """``jaxgen serve``; 0 after a clean stop, 1 when the engine died, 2 when it could not start."""
    args = make_parser().parse_args(argv)
    set_up_logging("%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        limits = {name: getattr(args, name) for name in LIMITS}
        config = ServerConfig(api_keys=tuple(args.api_key or ()), api_key_file=args.api_key_file, **limits)
        listener = _listen(args.host, args.port)
        engine = _open_engine(args)
        app = create_app(engine, config)
    except ConfigError as error:
        print(f"jaxgen serve: {error}", file=sys.stderr)
        return 2
    engine.start()
    try:
        return asyncio.run(_run(engine, app, listener, args.shutdown_timeout))
    finally:
        engine.stop()
