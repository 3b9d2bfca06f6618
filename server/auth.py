"""API keys: ``Authorization: Bearer KEY`` on every route but the probes."""

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/ready"})


class ApiKeyMiddleware:
    """Answers 401 unless a request presents one of ``keys``. Unknown routes and every method are covered."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._digests or _path(scope) in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        error = self._refusal(Headers(scope=scope).get("authorization", ""))
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error.response()(scope, receive, send)

    def _refusal(self, authorization: str) -> ApiError | None:
        headers = {"WWW-Authenticate": "Bearer"}
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = "You didn't provide an API key: send it as the header Authorization: Bearer YOUR_KEY."
            return ApiError(401, message, headers=headers)
        # Header text is latin-1 by ASGI; digests have one length, and every key is compared, whichever matches.
        digest = sha256(key.strip().encode("latin-1")).digest()
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            return ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers=headers)
        return None


def _path(scope: Scope) -> str:
    """The path below the place where the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
