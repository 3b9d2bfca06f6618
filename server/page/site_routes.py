"""Serve the page's files from memory, each with a strong ETag and a content security policy."""

import mimetypes
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def _walk(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for one in folder.iterdir():
        if one.is_dir():
            found |= _walk(one, f"{prefix}{one.name}/")
        else:
            found[prefix + one.name] = one.read_bytes()
    return found


def page_routes() -> list[Route]:
    """Return a route for each file; ``index.html`` is at ``/``, other pages at their names without ``.html``."""
    return [_route(path, content) for path, content in sorted(_walk(files(__package__) / "site").items())]


def _route(path: str, content: bytes) -> Route:
    media = mimetypes.guess_type(path)[0] or "text/plain"
    media = "text/javascript" if path.endswith(".js") else media
    etag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
        "etag": etag,
    }

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media, headers=headers)

    public = "" if path == "index.html" else path.removesuffix(".html")
    return Route(f"/{public}", serve)
