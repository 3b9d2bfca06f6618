"""/health, /ready, /livez, /version and /metrics."""

from importlib.metadata import version
from typing import Any

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxgen.server.metrics.metrics import Metrics
from jaxgen.server.middleware.lifecycle import Lifecycle


async def show_version(_: Request) -> Response:
    """The endpoint of /version."""
    return JSONResponse({"version": version("jaxgen")})


class Probes:
    """Endpoints of /ready and /health (may it get requests?), and of /livez (may this process keep running?).

    Routers of LLM servers watch /health and know no other route.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def live(self, _: Request) -> Response:
        return _probe_answer(self._lifecycle.trouble())

    async def ready(self, _: Request) -> Response:
        return _probe_answer("draining" if self._lifecycle.draining else self._lifecycle.trouble())


def _probe_answer(trouble: str | None) -> Response:
    if trouble is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": trouble}, status_code=503)


def metrics_route(metrics: Metrics) -> Any:
    """Return the endpoint of /metrics, which uses the format that the caller accepts."""

    async def show(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), media_type=content_type)

    return show
