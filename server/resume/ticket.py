"""Write and check what the ids of one stream's events have in common: what is needed to compute its answer again.

No server keeps it. Its hashes and its code are made with the caller's secret: they tell others nothing, and show that a
server gave it to this caller.
"""

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import NamedTuple

from jaxgen.server.errors import ApiError, bad_request

FIELD = "Last-Event-ID"
ASKING = "X-Event-IDs"
"""Header by which a caller asks for the ids of a stream's events, as by ``return_event_ids`` in the body."""

_VERSION = 2
_LAYOUT = struct.Struct(">B16sqI6s6s6s")
_CODE_BYTES = 13  # with the layout 60 bytes, which are 80 characters without padding
LENGTH = 80


class AnswerIdentity(NamedTuple):
    """The random and timed parts of an answer: the random part of its id, its seed, and when it was begun.

    ``seed``: the request's own, or one drawn for it. ``created``: seconds since 1970.
    """

    name: bytes
    seed: int
    created: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """An answer's identity, and keyed hashes of what else its bits depend on.

    ``engine``: of the engine's digest. ``body``: of the body. ``reading``: of the prompt's tokens and the parameters
    that this server made of the body.
    """

    identity: AnswerIdentity
    engine: bytes
    body: bytes
    reading: bytes

    @staticmethod
    def short(value: bytes, secret: bytes) -> bytes:
        """Return the hash of a value, as a ticket has it."""
        return hmac.digest(b"jaxgen hash" + secret, value, "sha256")[:6]

    def positions_key(self, secret: bytes) -> bytes:
        """Return the key of the checksums of this answer's tokens."""
        fields = _LAYOUT.pack(_VERSION, *self.identity, self.engine, self.body, self.reading)
        return hmac.digest(b"jaxgen positions" + secret, fields, "sha256")

    def encode(self, secret: bytes) -> bytes:
        """Return the ticket as LENGTH characters, with a code made with the caller's ``secret``."""
        fields = _LAYOUT.pack(_VERSION, *self.identity, self.engine, self.body, self.reading)
        return urlsafe_b64encode(fields + _code(fields, secret))

    @classmethod
    def decode(cls, text: str, secret: bytes) -> "Ticket":
        """Read what ``encode`` wrote. Raises ApiError: 400 for another text, 403 for another caller's."""
        try:
            data = urlsafe_b64decode(text)
        except ValueError:
            data = b""
        if len(text) != LENGTH or len(data) != _LAYOUT.size + _CODE_BYTES or data[0] != _VERSION:
            raise malformed()
        fields = data[: _LAYOUT.size]
        if not hmac.compare_digest(data[_LAYOUT.size :], _code(fields, secret)):
            raise ApiError(
                403,
                f"{FIELD}: this id was not given to the caller with this API key.",
                param=FIELD,
                code="foreign_event_id",
            )
        _, name, seed, created, engine, body, reading = _LAYOUT.unpack(fields)
        return cls(AnswerIdentity(name, seed, created), engine, body, reading)

    def check(self, own: "Ticket") -> None:
        """Check a caller's ticket against this server's own for the same request. Raises ApiError: 409 if this server
        would compute another answer, 400 if the body is another."""
        if self.engine != own.engine:
            raise ApiError(
                409,
                f"{FIELD}: a server with another model, version or flags began the stream, so the tokens may differ. "
                "Send it to a server with the same system_fingerprint, or begin again without the id.",
                param=FIELD,
                code="digest_differs",
            )
        if self.body != own.body:
            raise bad_request(
                f"{FIELD}: the stream was begun with another body. Send the same one, byte by byte.",
                FIELD,
                "body_differs",
            )
        if self.reading != own.reading:
            raise ApiError(
                409,
                f"{FIELD}: this server reads this body as another prompt or other parameters than the first server "
                "did. Its flags differ, or the chat template has the date. Begin again without the id.",
                param=FIELD,
                code="prompt_differs",
            )


def malformed() -> ApiError:
    """Return the error for an id that no jaxgen server wrote."""
    return bad_request(
        f"{FIELD} is not an id of an event of this server: send the last one that came, as it was, or none.",
        FIELD,
        "unknown_event_id",
    )


def answer_differs() -> ApiError:
    """Return the error for an answer, computed again, that is not the one that was told."""
    return ApiError(
        409,
        f"{FIELD}: computed again, the answer is not the one that the stream had. Begin again without the id.",
        param=FIELD,
        code="answer_differs",
    )


def _code(fields: bytes, secret: bytes) -> bytes:
    return hmac.digest(b"jaxgen event id" + secret, fields, "sha256")[:_CODE_BYTES]
