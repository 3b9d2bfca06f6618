"""Serve the page's files from memory, each with a strong ETag and a content security policy."""

import gzip
import mimetypes
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
TYPES = {".js": "text/javascript", ".woff2": "font/woff2"}
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


@dataclass(frozen=True, slots=True)
class SiteFile:
    """One file of the page, and what it is compressed."""

    path: str
    """As callers ask for it: ``index.html`` is at ``/``, other pages are at their names without ``.html``."""
    media: str
    content: bytes
    compressed: bytes
    """The content itself where compression makes it no smaller."""

    async def serve(self, request: Request) -> Response:
        """Answer the file, or 304 to a caller who has it."""
        if self.path == "/" and not _ends_with_slash(request):
            # The page's links are relative: they lead below the prefix only from the address with a slash.
            return RedirectResponse(f"{request.scope['root_path'].rpartition('/')[2]}/", headers=HEADERS)
        compressed = self.compressed is not self.content and "gzip" in request.headers.get("accept-encoding", "")
        content = self.compressed if compressed else self.content
        headers = {**HEADERS, "etag": f'"{sha256(content).hexdigest()[:32]}"'}
        known = request.headers.get("if-none-match", "").split(",")
        if headers["etag"] in (tag.strip().removeprefix("W/") for tag in known):
            return Response(status_code=304, headers=headers)
        if compressed:
            headers["content-encoding"] = "gzip"
        return Response(content, media_type=self.media, headers=headers)


def page_routes() -> list[Route]:
    """Return a route for each file of the page."""
    return [Route(file.path, file.serve) for file in _site()]


@cache
def _site() -> tuple[SiteFile, ...]:
    return tuple(_site_file(name, content) for name, content in sorted(_walk(files(__package__) / "site").items()))


def _walk(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    result: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            result |= _walk(entry, f"{prefix}{entry.name}/")
        else:
            result[prefix + entry.name] = entry.read_bytes()
    return result


def _site_file(name: str, content: bytes) -> SiteFile:
    # What the machine's own table of types says of scripts is not always what browsers take for modules.
    media = TYPES.get(PurePosixPath(name).suffix) or mimetypes.guess_type(name)[0] or "text/plain"
    compressed = gzip.compress(content, mtime=0)
    public = "" if name == "index.html" else name.removesuffix(".html")
    return SiteFile(f"/{public}", media, content, min(content, compressed, key=len))


def _ends_with_slash(request: Request) -> bool:
    """Whether the address ends with a slash as it was asked for: with ``--root-path /llm`` that is ``/llm/``, or, where
    a proxy has stripped the prefix, ``/``."""
    return bool(request.scope.get("raw_path", b"/").endswith(b"/"))
