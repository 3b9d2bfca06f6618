"""Make the secrets with which ids of events are hashed: who has an id alone can test no guess of a prompt or a key."""

import hashlib
import hmac
import os
from functools import lru_cache


class Secrets:
    """The secret of each caller, by its API key, which is empty where callers need none.

    With a ``configured`` text they are the same in all servers that have it. Without one they are made of the API key
    by scrypt (RFC 7914), which takes some 50 ms and 16 MiB, once for each key. So servers that know the key have them
    too, and each guess of a key costs as much. A caller without a key then gets a secret of this process alone.
    """

    def __init__(self, configured: str | None) -> None:
        self._own = None if configured is None else configured.encode()
        self._of_process = os.urandom(32)

    def of(self, key: bytes) -> bytes:
        """Return the secret of the caller with an API key, 32 bytes."""
        if self._own is not None:
            return hmac.digest(self._own, b"jaxgen event ids of " + key, "sha256")
        return _stretched(key) if key else self._of_process


@lru_cache(4096)
def _stretched(key: bytes) -> bytes:
    return hashlib.scrypt(key, salt=b"jaxgen event ids", n=2**14, r=8, p=1, dklen=32)
