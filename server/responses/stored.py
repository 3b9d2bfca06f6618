"""GET and DELETE /v1/responses/{response_id}, its input items, and cancel."""

from typing import Any, NoReturn

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jaxgen.server.api.query import Query, caller
from jaxgen.server.api.routes import route
from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.responses.store import ResponseStore, StoredResponse
from jaxgen.server.resume.ticket import FIELD

MOST_LISTED = 100
INCLUDE = ("include", "include[]")
"""What was asked for when the response was made is included in any case, and nothing else there is."""


class StoredResponses:
    """The endpoints of stored responses, each for the caller that made it."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def routes(self, counted: Middleware) -> list[Route]:
        """Return the routes. ``counted``: middleware that counts requests."""
        path = "/v1/responses/{response_id}"
        return [
            route(path, {"GET": self._get, "DELETE": self._delete}, counted),
            route(f"{path}/input_items", {"GET": self._input_items}, counted),
            route(f"{path}/cancel", {"POST": self._cancel}, counted),
        ]

    async def _get(self, request: Request) -> Response:
        query = Query(request, (*INCLUDE, "include_obfuscation", "starting_after", "stream"))
        if query.choice("stream", ("false", "true")) == "true" or query.text("starting_after") is not None:
            raise bad_request(
                "stream, starting_after: events are not stored. To resume a stream, send its body again to "
                f"POST /v1/responses, with the last event id as the header {FIELD}. A stored response needs neither.",
                "stream",
            )
        query.choice("include_obfuscation", ("false",))
        return Response(self._stored(request).response, media_type="application/json")

    async def _delete(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        if not self._store.delete(caller(request), response_id):
            _not_found(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    async def _input_items(self, request: Request) -> Response:
        query = Query(request, (*INCLUDE, "after", "limit", "order"))
        limit, order = query.limit(20, MOST_LISTED), query.choice("order", ("desc", "asc"))
        items = self._stored(request).context()
        if order == "desc":
            items.reverse()
        if (after := query.text("after")) is not None:
            items = items[_place(items, after) + 1 :]
        page = items[:limit]
        return JSONResponse(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(items) > limit,
            }
        )

    async def _cancel(self, request: Request) -> Response:
        self._stored(request)
        raise bad_request(
            "Only a background response can be cancelled, and this server makes none: close the connection instead."
        )

    def _stored(self, request: Request) -> StoredResponse:
        response_id = request.path_params["response_id"]
        response = self._store.get(caller(request), response_id)
        return _not_found(response_id) if response is None else response


def _place(items: list[dict[str, Any]], name: str) -> int:
    for i, item in enumerate(items):
        if item["id"] == name:
            return i
    raise bad_request(f"after: {name[:100]!r} is not the id of an item here: send the last_id of a page.", "after")


def _not_found(response_id: str) -> NoReturn:
    raise ApiError(404, f"Response with id {response_id[:100]!r} not found.", code="response_not_found")
