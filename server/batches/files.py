"""/v1/files."""

from typing import Any, Literal

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.types import Message

from jaxgen.server.batches.store import Store
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.middleware.auth import CALLER
from jaxgen.server.schema.base import Body

MOST_LISTED = 10_000
_ENVELOPE = 2**16
"""Most bytes of a form beside the file in it."""


class FileForm(Body):
    """The form of an upload."""

    purpose: Literal["batch"]
    file: bytes


class FilesEndpoint:
    """The endpoints of /v1/files. ``store`` None: the server stores no files."""

    def __init__(self, store: Store | None, config: ServerConfig) -> None:
        self._store = store
        self._config = config

    async def create(self, request: Request) -> Response:
        store = kept(self._store)
        async with self._bounded(request).form(max_files=1, max_fields=8, max_part_size=1024) as form:
            upload = _upload(form)
            if (upload.size or 0) > self._config.max_file_bytes:
                raise self._too_long()
            name = (upload.filename or "file")[:255]
            made = await store.do(store.add_file, caller(request), "batch", name, upload.file)
        return JSONResponse(made)

    async def list(self, request: Request) -> Response:
        store, query = kept(self._store), Query(request, ("purpose", "after", "limit", "order"))
        found = await store.do(
            store.files,
            caller(request),
            purpose=query.text("purpose"),
            after=query.text("after"),
            limit=query.limit(MOST_LISTED, MOST_LISTED),
            newest_first=query.choice("order", ("desc", "asc")) == "desc",
        )
        return JSONResponse(found)

    async def get(self, request: Request) -> Response:
        return JSONResponse(await self._file(request))

    async def content(self, request: Request) -> Response:
        file = await self._file(request)
        return FileResponse(kept(self._store).path(file["id"]), media_type="application/octet-stream")

    async def delete(self, request: Request) -> Response:
        store, file_id = kept(self._store), request.path_params["file_id"]
        await store.do(store.delete_file, caller(request), file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    async def _file(self, request: Request) -> dict[str, Any]:
        store = kept(self._store)
        return await store.do(store.file, caller(request), request.path_params["file_id"])

    def _bounded(self, request: Request) -> Request:
        """Return the request with a limit on its body: the longest file and its form. Raises ApiError 413."""
        left = self._config.max_file_bytes + _ENVELOPE
        if int(request.headers.get("content-length", "0")) > left:
            raise self._too_long()

        async def receive() -> Message:
            nonlocal left
            message = await request.receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_long()
            return message

        return Request(request.scope, receive)

    def _too_long(self) -> ApiError:
        return ApiError(413, f"The file is longer than {self._config.max_file_bytes} bytes.", param="file")


def _upload(form: FormData) -> UploadFile:
    """Return the file of a form. Raises ApiError 400 that names the field."""
    for name, value in form.multi_items():
        if name not in FileForm.model_fields:
            raise bad_request(f"Unknown field {name[:100]!r}.", name[:100])
        if name == "purpose" and value != "batch":
            raise bad_request("purpose must be 'batch'.", "purpose")
    if "purpose" not in form:
        raise bad_request("purpose is missing: send 'batch'.", "purpose")
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise bad_request("file is missing: send a form (multipart/form-data) with a file in it.", "file")
    return upload


def kept(store: Store | None) -> Store:
    """Return the store. Raises ApiError 404 where the server has none."""
    if store is None:
        message = "This server keeps no files and runs no batches: it was started without --batch-dir."
        raise ApiError(404, message, code="batches_disabled")
    return store


def caller(request: Request) -> str:
    """Return the owner of the files and batches that a request makes: the caller's name, see ``ApiKeys.caller``."""
    return str(request.scope.get(CALLER, ""))


class Query:
    """The parameters of a request's query. Raises ApiError 400 that names an unknown or invalid parameter."""

    def __init__(self, request: Request, known: tuple[str, ...]) -> None:
        self._values = request.query_params
        for name in self._values:
            if name not in known:
                raise bad_request(f"Unknown parameter {name[:100]!r}.", name[:100])

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self._values.get(name, choices[0])
        if value not in choices:
            raise bad_request(f"{name} must be one of {', '.join(choices)}, not {value[:100]!r}.", name)
        return value

    def limit(self, default: int, most: int) -> int:
        text = self._values.get("limit", str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
            raise bad_request(f"limit must be between 1 and {most}, not {text[:100]!r}.", "limit")
        return int(text)
