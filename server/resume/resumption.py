"""Give answers their identities, and read the id with which a caller resumes a stream."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from time import time
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import Scope

from jaxgen.core.limits import check_token_ids
from jaxgen.core.service_class import DEFAULT_CLASS
from jaxgen.server.errors import bad_request, refusals
from jaxgen.server.middleware.context import context_of
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.resume.event_ids import LastEvent
from jaxgen.server.resume.secrets import Secrets
from jaxgen.server.resume.ticket import ASKING, FIELD, AnswerIdentity, Ticket
from jaxgen.server.schema.base import CallerFields, ResumeFromTokens

_NOT_COMPUTED = {"resume", "cache_salt", "return_event_ids"}
"""Fields of a body that do not change what is computed; the salt has the caller's name in it by now."""
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


class Identities:
    """Draws the identities of answers. ``seed``: of the generator of their seeds; None: a random one."""

    def __init__(self, seed: int | None) -> None:
        self._seeds = random.Random(seed)

    def new(self) -> AnswerIdentity:
        return AnswerIdentity(uuid4().bytes, self._seeds.getrandbits(63), int(time()))


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding of a stream's event ids to its caller, its body and the engine. ``secret``: the caller's."""

    secret: bytes
    digest: str
    body: CallerFields

    def ticket(self, identity: AnswerIdentity, reading: bytes) -> Ticket:
        """Return the ticket of an answer. ``reading``: what this server made of the body."""
        body = self.body.model_dump_json(exclude=_NOT_COMPUTED, by_alias=True).encode()
        hashes = [Ticket.short(value, self.secret) for value in (self.digest.encode(), body, reading)]
        return Ticket(identity, *hashes)

    def tokens(self, num_choices: int, vocab_size: int) -> Sequence[Sequence[int]]:
        """Return the tokens that the caller says it has of each choice. Raises ApiError 400."""
        resume = self.body.resume
        given = resume.token_ids if isinstance(resume, ResumeFromTokens) else None
        if given is None:
            return [()] * num_choices
        name = "resume.token_ids"
        if len(given) != num_choices:
            raise bad_request(f"{name} has {len(given)} lists, and the stream has {num_choices} choices.", name)
        with refusals():
            for ids in given:
                check_token_ids(name, ids, vocab_size)
        return given


def digest_of(params: CompletionParams, prompts: Sequence[Prompt], reading: AnswerReading | None) -> bytes:
    """Return a hash of the prompts and the parameters of an answer, without the parameters that do not change the
    events."""
    sampling = replace(params.sampling, seed=None)
    of_events = replace(params, sampling=sampling, cache_salt=None, priority=0, service=DEFAULT_CLASS, most_logprobs=0)
    hashed = sha256(repr((of_events, None if reading is None else reading.form)).encode())
    for prompt in prompts:
        hashed.update(repr((len(prompt.tokens), prompt.text)).encode())
        hashed.update(array("I", prompt.tokens).tobytes())
    return hashed.digest()


def read_last_event(body: CallerFields, scope: Scope, secrets: Secrets) -> LastEvent | None:
    """Return what the id in the header, or in the body, says; None: the request begins a stream. Raises ApiError."""
    text = Headers(scope=scope).get(FIELD, "") if "headers" in scope else ""
    if body.resume is not None:
        if text and text != body.resume.last_event_id:
            raise bad_request(f"resume.last_event_id and the header {FIELD} differ: send one.", "resume.last_event_id")
        text = body.resume.last_event_id
    if not text:
        return None
    if not body.stream:
        raise bad_request(f"{FIELD} needs stream to be true.", FIELD)
    return LastEvent.decode(text, secrets.of(context_of(scope).key))


def shows_ids(body: CallerFields, scope: Scope, *, resumes: bool, default: bool) -> bool:
    """Return whether the events of a stream have ids: as the body says, else the header, else a caller who ``resumes``
    one wants them, else the ``default``. Raises ApiError 400."""
    if body.return_event_ids is not None:
        if body.return_event_ids and not body.stream:
            raise bad_request("return_event_ids needs stream to be true.", "return_event_ids")
        return body.return_event_ids
    asked = Headers(scope=scope).get(ASKING, "").lower() if "headers" in scope else ""
    if asked not in ("", *_SWITCH):
        raise bad_request(f"{ASKING} must be true or false.", ASKING)
    return _SWITCH[asked] if asked else resumes or default
