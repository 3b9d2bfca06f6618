"""API keys: ``Authorization: Bearer KEY``, or ``x-api-key: KEY`` as Anthropic's clients send it, on every route but the
probes, the page, and perhaps /metrics."""

import codecs
import hmac
import logging
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.core.errors import ConfigError
from jaxgen.server.config import Access
from jaxgen.server.errors import ApiError
from jaxgen.server.middleware.context import context_of
from jaxgen.server.middleware.refusals import refused

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready", "/livez"})
CALLER = "jaxgen.caller"
"""Key in a request's scope: the caller's name, as ``ApiKeys.caller`` returns it; missing where no key is needed."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Rights of a caller, from the line of its key."""

    weight: float = 1.0
    operator: bool = False


DEFAULT_RIGHTS = Permissions()


def open_paths(access: Access) -> frozenset[str]:
    """Return the paths of the API that need no key."""
    return OPEN_PATHS | {"/metrics"} if access.public_metrics else OPEN_PATHS


class ApiKeys:
    """The valid API keys: ``keys``, and the keys of a file, which is read again when it changes.

    The file has one key in each line. ``weight=2`` after a key gives this caller twice the tokens of others under
    contention. ``operator`` after a key lets this caller see what all callers do. Empty lines and lines that begin with
    # are ignored. Raises ConfigError if the file cannot be read or has no key. If it cannot be read later, the last
    known keys stay valid, and two lines of the log say so.
    """

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        self._given = [_digest(key.encode()) for key in keys]
        self._file = file
        self._in_file: list[bytes] = []
        self._rights: dict[str, Permissions] = {}
        self._version: tuple[int, ...] = ()
        self._is_stale = False
        if file is not None:
            try:
                self._read(file)
            except OSError as error:
                raise ConfigError(f"--api-key-file {file} cannot be read: {error.strerror}") from error
            if not self._in_file:
                raise ConfigError(f"--api-key-file {file} has no key in it")
            if (mode := stat.S_IMODE(file.stat().st_mode)) & stat.S_IROTH:
                logger.warning("--api-key-file %s can be read by every user of this machine (mode %04o)", file, mode)

    @property
    def asked_for(self) -> bool:
        """Whether a caller needs a key."""
        return bool(self._given) or self._file is not None

    def caller(self, key: bytes) -> str | None:
        """Return the caller's name: a hash that does not reveal the key, empty where one key is given and no file.

        None: not a valid key. Digests have one length, and all are compared, whichever matches, against timing attacks.
        """
        self._refresh()
        digest, known = _digest(key), [*self._given, *self._in_file]
        if not sum(hmac.compare_digest(digest, other) for other in known):
            return None
        return digest.hex() if self._file is not None or len(known) > 1 else ""

    def rights(self, caller: str) -> Permissions:
        """Return a caller's rights, by the name that ``caller`` returned."""
        return self._rights.get(caller, DEFAULT_RIGHTS)

    def reload(self) -> bool:
        """Read the file again, though it may seem unchanged. Return False where there is none."""
        if self._file is None:
            return False
        self._version = ()
        self._refresh()
        if self._version:
            logger.info("the keys of %s are read again", self._file)
        return True

    def _refresh(self) -> None:
        if self._file is not None:
            try:
                if self._read(self._file) and self._is_stale:
                    self._is_stale = False
                    logger.warning("the keys of --api-key-file %s are read again", self._file)
            except (OSError, ConfigError) as error:
                if not self._is_stale:
                    self._is_stale = True
                    logger.warning("the keys of --api-key-file %s stay as they were: %s", self._file, error)

    def _read(self, file: Path) -> bool:
        """Read the keys if the file has changed, and return whether it has. Raises OSError or ConfigError."""
        try:
            status = file.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version == self._version:
                return False
            content = file.read_bytes()
        except OSError:
            self._version = ()
            raise
        self._version = version
        keys = _keys_of(content, file)
        self._in_file = list(keys)
        self._rights = {digest.hex(): rights for digest, rights in keys.items()}
        return True


class ApiKeyMiddleware:
    """Answers 401 to requests without a valid API key, if keys are configured; also for unknown routes and methods, but
    not for ``open_paths``."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, open_paths: Collection[str] = OPEN_PATHS) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys.asked_for or context_of(scope).path in self._open_paths:
            await self._app(scope, receive, send)
            return
        given = _given_keys(Headers(scope=scope))
        for key in given:
            if (caller := self._keys.caller(key)) is not None:
                context = context_of(scope)
                rights = self._keys.rights(caller)
                context.caller, context.weight, context.operator = caller, rights.weight, rights.operator
                context.key = key
                await self._app({**scope, CALLER: caller}, receive, send)
                return
        await refused(scope, _WRONG_KEY if given else _NO_KEY)(scope, receive, send)


_INVALID = "invalid_api_key"
"""OpenAI's code, for a missing key too."""
_ASKED = {"WWW-Authenticate": "Bearer"}
_NO_KEY = ApiError(
    401,
    "You didn't provide an API key: send it as the header Authorization: Bearer YOUR_KEY, or as x-api-key: YOUR_KEY.",
    code=_INVALID,
    headers=_ASKED,
)
_WRONG_KEY = ApiError(401, "Incorrect API key provided.", code=_INVALID, headers=_ASKED)


def _given_keys(headers: Headers) -> list[bytes]:
    """Return the keys that a request has: some of Anthropic's clients send two, one of them for another server."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = [bearer if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
    return [key.strip().encode("latin-1") for key in keys if key.strip()]  # header text is latin-1 by ASGI


def _keys_of(content: bytes, file: Path) -> dict[bytes, Permissions]:
    """Return the digests of a file's keys, and their rights. Raises ConfigError that names the line, never the key."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"--api-key-file {file} is UTF-16: save it as UTF-8")
    keys = {}
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).splitlines(), 1):
        words = _words(line)
        if words and not words[0].startswith(b"#"):
            keys[_digest(words[0])] = _rights(words[1:], f"--api-key-file {file}, line {number}")
    return keys


def _words(line: bytes) -> list[bytes]:
    """Split at any white space, as a no-break space, where the line is UTF-8."""
    try:
        return [word.encode() for word in line.decode().split()]
    except UnicodeDecodeError:
        return line.split()


def _rights(words: list[bytes], where: str) -> Permissions:
    """Parse the words after a line's key. Raises ConfigError."""
    values = dict(word.partition(b"=")[::2] for word in words)
    weight = _number(values.get(b"weight", b"1"))
    known = all(word == b"operator" or word.startswith(b"weight=") for word in words)
    if not known or len(values) < len(words) or not 0.0 < weight < inf:
        raise ConfigError(f"{where}: behind a key may be weight=NUMBER, above 0, and operator, and nothing else")
    return Permissions(weight, operator=b"operator" in values)


def _number(text: bytes) -> float:
    """Return the number that a text is; 0 for another text."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
