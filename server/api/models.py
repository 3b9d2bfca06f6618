"""The routes of /v1/models."""

from time import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxgen.client import EngineClient
from jaxgen.server.api.endpoint import model_not_found


class Models:
    """Endpoints that list and describe the one model."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._created = int(time())

    def _model(self) -> dict[str, Any]:
        model = self._engine.model
        return {
            "id": model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "jaxgen",
            "max_model_len": model.max_model_len,
        }

    async def list(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def get(self, request: Request) -> Response:
        """Describe the model of the path's name; a path that ends in a slash is that without it."""
        path: str = request.path_params["model"]
        if not path:
            return await self.list(request)
        name = path.removesuffix("/")
        if name != self._engine.model.name:
            raise model_not_found(name)
        return JSONResponse(self._model())
