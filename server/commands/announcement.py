"""Say what a server that is ready serves, where, and how to try it."""

import json
import shlex
import socket
from dataclasses import dataclass

from jaxgen.core.model_info import ModelInfo
from jaxgen.core.stats import EngineStats
from jaxgen.server.config import ServerConfig

DEMO_NOTE = "a demo model that only continues Python code; for a chat add --model smollm2-135m"
WORTH_TELLING = 1.1
"""How much longer steps must become, the more requests run, for the log to say it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place at which a server listens. ``before``: what stands before the URL; ``curl``: what curl needs besides.

    ``browsable``: whether a browser can open it.
    """

    base: str
    before: str = ""
    curl: str = ""
    browsable: bool = True


def place_of(listener: socket.socket, scheme: str) -> Place:
    """Return the place of a listening socket."""
    if listener.family == socket.AF_UNIX:
        path = shlex.quote(listener.getsockname())
        return Place(f"{scheme}://localhost", f"the Unix socket {path}, ", f"--unix-socket {path} ", browsable=False)
    host, port, *_ = listener.getsockname()
    return Place(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")


def ready_lines(model: ModelInfo, config: ServerConfig, place: Place) -> list[str]:
    """Return the URL of the API, that of the playground if there is one, and a request that the model answers well."""
    note = model.note or (DEMO_NOTE if model.embedded else "")
    playground = [f"Playground: {place.base}/"] if config.ui and place.browsable else []
    route, fields = _first_request(model)
    key = "-H 'Authorization: Bearer YOUR_KEY' " if config.access.asks_for_keys else ""
    body = shlex.quote(json.dumps({"model": model.name, **fields}))
    return [
        f"{model.name}{f' ({note})' if note else ''} is ready at {place.before}{place.base}/v1",
        *playground,
        f"Try: curl {place.curl}{place.base}/v1/{route} {key}-H 'Content-Type: application/json' -d {body}",
    ]


def _first_request(model: ModelInfo) -> tuple[str, dict[str, object]]:
    """Return the route below /v1 that fits the model best, and the fields of a short request to it.

    The demo model has a chat template, but was trained to recall values from Python code.
    """
    if not model.generates:
        return "embeddings", {"input": "Hello"}
    if model.embedded:
        return "completions", {"prompt": "port = 4821\nprint(port)  #", "max_tokens": 8, "temperature": 0, "stop": "\n"}
    if model.chat is None:
        return "completions", {"prompt": "The capital of France is", "max_tokens": 16}
    question = {"role": "user", "content": "What is the capital of France?"}
    return "chat/completions", {"messages": [question], "max_tokens": 64}


def pace_line(stats: EngineStats) -> str:
    """Return the latencies that the engine predicts for an idle server."""
    pace = stats.pace
    longer = pace.longest_full_step > WORTH_TELLING * pace.longest_step
    full = f" ({1000 * pace.longest_full_step:,.0f} ms with the most requests at once)" if longer else ""
    return (
        f"expected: a token within {1000 * pace.longest_step:,.0f} ms{full} in 99 of 100 steps, and the first token "
        f"after {pace.first_token:,.2f} s per 1,000 prompt tokens; /metrics has the values for the current load"
    )
