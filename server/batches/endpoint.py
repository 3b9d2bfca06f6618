"""/v1/batches."""

from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxgen.server.api.body import Bodies
from jaxgen.server.api.query import Query, caller
from jaxgen.server.batches.files import required_store
from jaxgen.server.batches.runner import BatchRunner
from jaxgen.server.batches.store import Store
from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.limits import Limits
from jaxgen.server.schema.base import Body
from jaxgen.server.schema.parsing import parse_body

MOST_LISTED = 100
MOST_METADATA = (64, 512)
"""Most characters of a name and of a value."""
MOST_METADATA_BYTES = 16 * 2**10
"""Most bytes of all names and values together, in UTF-8: 16 pairs of the longest have 9,216 where characters have one
byte each."""


class BatchRequest(Body):
    """The body of /v1/batches."""

    completion_window: str | None = None
    endpoint: str | None = None
    input_file_id: str | None = None
    metadata: dict[str, str] | None = None


class BatchesEndpoint:
    """The endpoints of /v1/batches. ``store`` and ``runner`` None: the server runs no batches.

    ``endpoints``: paths that batch lines may call.
    """

    def __init__(
        self,
        store: Store | None,
        runner: BatchRunner | None,
        endpoints: Collection[str],
        limits: Limits,
        bodies: Bodies,
    ) -> None:
        self._store = store
        self._runner = runner
        self._endpoints = endpoints
        self._limits = limits
        self._bodies = bodies

    async def create(self, request: Request) -> Response:
        store = required_store(self._store)
        data = await self._bodies.read_json_object(request.scope, request.receive)
        body = parse_body(BatchRequest, data, self._limits)
        if body.completion_window != "24h":
            raise bad_request("completion_window must be '24h'.", "completion_window")
        if body.endpoint is None or body.endpoint not in self._endpoints:
            raise bad_request(f"endpoint must be one of {', '.join(self._endpoints)}.", "endpoint")
        if body.input_file_id is None:
            raise bad_request("input_file_id is missing: upload a file to /v1/files first.", "input_file_id")
        _check_metadata(body.metadata or {})
        batch = await store.do(store.add_batch, caller(request), body.input_file_id, body.endpoint, body.metadata)
        self._submit(batch["id"])
        return JSONResponse(batch)

    async def list(self, request: Request) -> Response:
        store, query = required_store(self._store), Query(request, ("after", "limit"))
        limit = query.limit(20, MOST_LISTED)
        return JSONResponse(await store.do(store.batches, caller(request), after=query.text("after"), limit=limit))

    async def get(self, request: Request) -> Response:
        store = required_store(self._store)
        return JSONResponse(await store.do(store.batch, caller(request), request.path_params["batch_id"]))

    async def cancel(self, request: Request) -> Response:
        store, batch_id = required_store(self._store), request.path_params["batch_id"]
        await store.do(store.batch, caller(request), batch_id)
        batch = await store.do(store.move, batch_id, ("validating", "in_progress"), "cancelling")
        if batch["status"] != "cancelling":
            raise ApiError(
                409,
                f"The batch is {batch['status']}: only one that is validating or in_progress can be cancelled.",
                code="batch_not_cancellable",
            )
        if self._runner is not None:
            self._runner.cancel(batch_id)
        return JSONResponse(batch)

    async def delete(self, request: Request) -> Response:
        store, batch_id = required_store(self._store), request.path_params["batch_id"]
        await store.do(store.delete_batch, caller(request), batch_id)
        return JSONResponse({"id": batch_id, "object": "batch", "deleted": True})

    def _submit(self, batch_id: str) -> None:
        if self._runner is not None:
            self._runner.submit(batch_id)


def _check_metadata(metadata: dict[str, str]) -> None:
    name, value = MOST_METADATA
    if any(len(k) > name or len(v) > value for k, v in metadata.items()):
        raise bad_request(
            f"metadata may have names of up to {name} characters and values of up to {value}.", "metadata"
        )
    size = sum(len(text.encode()) for pair in metadata.items() for text in pair)
    if size > MOST_METADATA_BYTES:
        raise bad_request(f"metadata may have {MOST_METADATA_BYTES} bytes in all, and has {size}.", "metadata")
