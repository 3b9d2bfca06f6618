"""Give an app its files and batches: routes, and a lifespan in which batches run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from jaxgen.server.api.chat import ChatEndpoint
from jaxgen.server.api.completions import CompletionsEndpoint
from jaxgen.server.api.embeddings import EmbeddingsEndpoint
from jaxgen.server.api.endpoint import AppState
from jaxgen.server.api.routes import Handler, route
from jaxgen.server.batches.answers import LineEndpoint
from jaxgen.server.batches.background import BackgroundEngine
from jaxgen.server.batches.endpoint import BatchesEndpoint
from jaxgen.server.batches.files import FilesEndpoint
from jaxgen.server.batches.runner import BatchRunner
from jaxgen.server.batches.store import Store
from jaxgen.server.generation.queue_limit import QueueLimit
from jaxgen.server.messages.endpoint import MessagesEndpoint
from jaxgen.server.metrics.metrics import Metrics
from jaxgen.server.middleware.lifecycle import LifecycleMiddleware
from jaxgen.server.requests.prompts import PromptReader
from jaxgen.server.responses.endpoint import ResponsesEndpoint

ENDPOINTS: dict[str, Callable[[AppState], LineEndpoint]] = {
    "/v1/completions": CompletionsEndpoint,
    "/v1/chat/completions": ChatEndpoint,
    "/v1/responses": ResponsesEndpoint,
    "/v1/messages": MessagesEndpoint,
    "/v1/embeddings": EmbeddingsEndpoint,
}
"""The endpoints that batch lines may call."""


class Batches:
    """Files and batches of an app. Raises ConfigError where their directory cannot be used."""

    def __init__(self, services: AppState) -> None:
        config = services.config
        self._lifecycle = services.lifecycle
        self._store: Store | None = None
        self._runner: BatchRunner | None = None
        limits = config.batches
        if limits.batch_dir is not None:
            self._store = Store(limits.batch_dir, limits)
            endpoints, most = line_endpoints(services), config.limits.max_body_bytes
            self._runner = BatchRunner(self._store, endpoints, services.lifecycle, limits, most)
            self._runner.register(services.metrics.registry, services.engine.model.name)
        self._files = FilesEndpoint(self._store, limits, config.availability.retry_after_s)
        self._batches = BatchesEndpoint(self._store, self._runner, tuple(ENDPOINTS), config.limits, services.bodies)

    @property
    def routes(self) -> list[Route]:
        files, batches = self._files, self._batches
        handlers: dict[str, dict[str, Handler]] = {
            "/v1/files": {"GET": files.list, "POST": files.create},
            "/v1/files/{file_id}": {"GET": files.get, "DELETE": files.delete},
            "/v1/files/{file_id}/content": {"GET": files.content},
            "/v1/batches": {"GET": batches.list, "POST": batches.create},
            "/v1/batches/{batch_id}": {"GET": batches.get, "DELETE": batches.delete},
            "/v1/batches/{batch_id}/cancel": {"POST": batches.cancel},
        }
        counted = Middleware(LifecycleMiddleware, lifecycle=self._lifecycle)
        return [route(path, by_method, counted) for path, by_method in handlers.items()]

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Run batches within the lifespan, first unfinished ones of earlier processes; stop all at its end."""
        if self._store is None or self._runner is None:
            yield
            return
        running = asyncio.create_task(self._runner.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.to_thread(self._store.close)


def line_endpoints(services: AppState) -> dict[str, LineEndpoint]:
    """Return the endpoints for batch lines, which count neither in the limits of queues nor in the latency metrics."""
    engine = BackgroundEngine(services.engine)
    config = services.config
    queue = replace(config.queue, max_queued_requests=2**31, max_queued_tokens=2**62, max_queued_characters=2**62)
    prompts = PromptReader(engine, config.limits, queue)
    apart = replace(
        services,
        engine=engine,
        queue=QueueLimit(engine, queue, config.availability.retry_after_s),
        metrics=Metrics(engine),
        prompts=prompts,
        conversations=services.conversations.with_reader(prompts),
    )
    return {path: endpoint(apart) for path, endpoint in ENDPOINTS.items()}
