"""The routes of /v1/models."""

from datetime import UTC, datetime
from time import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxgen.client import EngineClient
from jaxgen.server.api.endpoint import model_not_found
from jaxgen.server.api.query import Query
from jaxgen.server.envelopes import speaks_anthropic

MOST_LISTED = 1000


class Models:
    """Endpoints that list and describe the one model, to callers of Anthropic's API as that does."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._created = int(time())

    def _model(self, request: Request) -> dict[str, Any]:
        model = self._engine.model
        if _asks_anthropic(request):
            return {
                "type": "model",
                "id": model.name,
                "display_name": model.name,
                "created_at": datetime.fromtimestamp(self._created, UTC).isoformat(),
                "lifecycle": "active",
                "max_input_tokens": model.max_model_len,
                "max_tokens": model.max_model_len,
            }
        return {
            "id": model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "jaxgen",
            "max_model_len": model.max_model_len,
        }

    async def list(self, request: Request) -> Response:
        data = [self._model(request)]
        if not _asks_anthropic(request):
            return JSONResponse({"object": "list", "data": data})
        query = Query(request, ("after_id", "before_id", "beta", "limit"))
        query.limit(20, MOST_LISTED)
        if query.text("after_id") or query.text("before_id"):
            data = []  # nothing comes before or after the one
        first = data[0]["id"] if data else None
        return JSONResponse({"data": data, "has_more": False, "first_id": first, "last_id": first})

    async def get(self, request: Request) -> Response:
        """Describe the model of the path's name; a path that ends in a slash is that without it."""
        path: str = request.path_params["model"]
        if not path:
            return await self.list(request)
        name = path.removesuffix("/")
        if name != self._engine.model.name:
            raise model_not_found(name, self._engine)
        return JSONResponse(self._model(request))


def _asks_anthropic(request: Request) -> bool:
    return speaks_anthropic(request.url.path, request.scope["headers"])
