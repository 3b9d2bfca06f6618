"""/v1/files."""

from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from jaxgen.server.api.body import check_encoding
from jaxgen.server.api.query import Query, caller
from jaxgen.server.batches.store import Store
from jaxgen.server.batches.tables import new_id
from jaxgen.server.batches.upload import ENVELOPE, WRITE_BYTES, Upload, too_long
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Batches
from jaxgen.server.shares import Shares

MOST_LISTED = 10_000


class FilesEndpoint:
    """The endpoints of /v1/files. ``store`` None: the server stores no files."""

    def __init__(self, store: Store | None, limits: Batches, retry_after_s: int) -> None:
        self._store = store
        self._limits = limits
        self._retry_after_s = retry_after_s
        self._uploads = Shares(limits.max_uploads)

    async def create(self, request: Request) -> Response:
        store = required_store(self._store)
        refusal = ApiError(
            429,
            f"{self._uploads.held(caller(request))} uploads of yours are under way; the limit of this server is "
            f"{self._limits.max_uploads} of all callers.",
            code="too_many_uploads",
            headers={"Retry-After": str(self._retry_after_s)},
        )
        with self._uploads.place(caller(request), refusal):
            return JSONResponse(await self._take(store, request))

    async def _take(self, store: Store, request: Request) -> dict[str, Any]:
        """Store the file of a form, and return its object. Whatever fails, nothing stays of it.

        What the request's headers say is too much is refused before the body is read.
        """
        check_encoding(request.headers)
        owner, most = caller(request), self._limits.max_file_bytes
        announced = request.headers.get("content-length", "")
        least = int(announced) - ENVELOPE if announced.isdecimal() else 0
        if least > most:
            raise too_long(most)
        await store.do(store.check_quota, owner, max(0, least))
        file_id = new_id("file")
        upload = Upload(request.headers.get("content-type", ""), store.path(file_id), most)
        try:
            async for chunk in request.stream():
                upload.feed(chunk)
                if len(upload.unwritten) >= WRITE_BYTES:
                    await store.do(upload.write)
            upload.check_complete()
            await store.do(upload.finish)
            return await store.do(store.add_file, owner, "batch", upload.filename, file_id, upload.size)
        except BaseException:  # the caller may have left
            store.start(upload.close, lambda: store.discard(file_id))
            raise

    async def list(self, request: Request) -> Response:
        store, query = required_store(self._store), Query(request, ("purpose", "after", "limit", "order"))
        page = await store.do(
            store.files,
            caller(request),
            purpose=query.text("purpose"),
            after=query.text("after"),
            limit=query.limit(MOST_LISTED, MOST_LISTED),
            newest_first=query.choice("order", ("desc", "asc")) == "desc",
        )
        return JSONResponse(page)

    async def get(self, request: Request) -> Response:
        return JSONResponse(await self._file(request))

    async def content(self, request: Request) -> Response:
        store, file = required_store(self._store), await self._file(request)
        path = store.path(file["id"])
        if not await store.do(path.is_file):
            message = f"The file {file['id']} is not in the server's batch directory any more: delete it."
            raise ApiError(404, message, param="file_id", code="file_not_found")
        return FileResponse(path, media_type="application/octet-stream")

    async def delete(self, request: Request) -> Response:
        store, file_id = required_store(self._store), request.path_params["file_id"]
        await store.do(store.delete_file, caller(request), file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    async def _file(self, request: Request) -> dict[str, Any]:
        store = required_store(self._store)
        return await store.do(store.file, caller(request), request.path_params["file_id"])


def required_store(store: Store | None) -> Store:
    """Return the store. Raises ApiError 404 where the server has none."""
    if store is None:
        message = "This server keeps no files and runs no batches: it was started without --batch-dir."
        raise ApiError(404, message, code="batches_disabled")
    return store
