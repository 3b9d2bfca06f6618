"""vLLM's API server in front of an engine core that computes nothing: every PERIOD seconds each request gets a token.

``-m scripts.event_loop.vllm_server PORT PERIOD``. Everything of vLLM's API process runs but the socket to its core: its
AsyncLLM gets the core's outputs as objects, in its own event loop, where it would read and decode them from ZeroMQ.

An environment with vLLM's Python files suffices; docs/event-loop.md says how to make one.
"""

import asyncio
import os
import sys
import threading
import time
from typing import Any

os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

from scripts.event_loop.text import MODEL, tokens

LONGEST = 2048


class FakeCore:
    """Stands for the client of an engine core in another process."""

    engine_ranks_managed = [0]  # noqa: RUF012

    def __init__(self, period: float) -> None:
        self._period = period
        self._tokens = tokens(LONGEST)
        self._running: dict[str, list[int]] = {}
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.resources = type("Resources", (), {"engine_dead": False})()

    async def add_request_async(self, request: Any) -> None:
        self._running[request.request_id] = [0, request.sampling_params.max_tokens]

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        for name in request_ids:
            self._running.pop(name, None)

    async def get_output_async(self) -> Any:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._run, daemon=True).start()
        return await self._outputs.get()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def reset_mm_cache_async(self) -> None:
        pass

    def shutdown(self, timeout: float | None = None) -> None:
        pass

    def dp_engines_running(self) -> bool:
        return True

    def _run(self) -> None:
        assert self._loop is not None
        due = time.monotonic()
        while True:
            due = max(due + self._period, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            if self._running:
                self._loop.call_soon_threadsafe(self._step)

    def _step(self) -> None:
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason

        outputs = []
        for name, state in list(self._running.items()):
            token = self._tokens[state[0]]
            state[0] += 1
            ended = state[0] == state[1]
            reason = FinishReason.LENGTH if ended else None
            outputs.append(EngineCoreOutput(request_id=name, new_token_ids=[token], finish_reason=reason))
            if ended:
                del self._running[name]
        self._outputs.put_nowait(EngineCoreOutputs(outputs=outputs))


def main() -> None:
    import uvloop
    from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.core_client import EngineCoreClient

    port, period = sys.argv[1], float(sys.argv[2])
    EngineCoreClient.make_async_mp_client = staticmethod(lambda *_, **__: FakeCore(period))
    parser = make_arg_parser(FlexibleArgumentParser())
    flags = ["--model", str(MODEL), "--served-model-name", "m", "--host", "127.0.0.1", "--port", port]
    args = parser.parse_args([*flags, "--enforce-eager", "--disable-uvicorn-access-log", *sys.argv[3:]])
    validate_parsed_serve_args(args)
    uvloop.run(run_server(args))


if __name__ == "__main__":
    main()
