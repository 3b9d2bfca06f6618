"""Ids of events tell nothing to who has nothing else, and are read by all servers that share what they are made of."""

import hashlib
import hmac
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from zlib import crc32

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.server.config import Access, Answers, ServerConfig
from jaxgen.server.resume.resumption import Binding
from jaxgen.server.resume.secrets import Secrets
from jaxgen.server.resume.ticket import AnswerIdentity, Ticket
from jaxgen.server.schema.base import CompletionRequest
from tests.support.fakes import MODEL
from tests.support.resumed import SHARED, streamed
from tests.support.server_app import byte_by_byte, fake_engine

PATH = "/v1/completions"
FIELDS = {"model": MODEL, "prompt": "the PIN is 4711", "seed": 1, "max_tokens": 5}
KEYED = ServerConfig(access=Access(api_keys=("demo-key-42",)))


def guesses(body: bytes, key: bytes) -> Iterator[bytes]:
    """Hashes of a guess that need nothing but it."""
    for secret in (b"", key, hashlib.sha256(key).digest(), hashlib.sha256(b"secret of " + key).digest()):
        yield hashlib.sha256(secret + body).digest()
        yield hmac.digest(b"jaxgen hash" + secret, body, "sha256")
        yield hmac.digest(b"jaxgen event id" + secret, body, "sha256")


@pytest.mark.parametrize(("config", "key"), [(ServerConfig(), ""), (KEYED, "demo-key-42"), (SHARED, "")])
def test_a_guess_of_prompt_answer_or_key_cannot_be_tested(config: ServerConfig, key: str) -> None:
    events = streamed(fake_engine(), PATH, FIELDS, key=key, config=config)
    ticket, _, position = events[-1].last_id.partition(".")
    data = urlsafe_b64decode(ticket)
    body = CompletionRequest.model_validate(FIELDS | {"stream": True, "return_event_ids": True})
    written = body.model_dump_json(exclude={"resume", "cache_salt", "return_event_ids"}, by_alias=True).encode()
    for guess in (*guesses(written, key.encode()), *guesses(data[:47], key.encode())):
        assert guess[:6] not in data
        assert guess[:13] not in data
    tokens = byte_by_byte("".join(event.value["choices"][0]["text"] for event in events))
    checksum = 0
    for token in tokens:
        checksum = crc32(token.to_bytes(4, "little"), checksum)
    assert f"{checksum:08x}" not in position


def test_the_test_above_finds_a_hash_without_a_secret() -> None:
    body = CompletionRequest.model_validate(FIELDS)
    made = Binding(b"", "digest", body).ticket(AnswerIdentity(bytes(16), 1, 2), b"reading")
    written = body.model_dump_json(exclude={"resume", "cache_salt", "return_event_ids"}, by_alias=True).encode()
    data = urlsafe_b64decode(made.encode(b""))
    assert any(guess[:6] in data for guess in guesses(written, b""))


def test_secrets() -> None:
    one, other = Secrets("of all servers"), Secrets("of all servers")
    assert one.of(b"") == other.of(b"") != one.of(b"key") == other.of(b"key")
    assert one.of(b"") != Secrets("of others").of(b"")
    own, again = Secrets(None), Secrets(None)
    assert own.of(b"key") == again.of(b"key") != own.of(b"other")
    assert own.of(b"") == own.of(b"") != again.of(b"")
    assert {len(secrets.of(key)) for secrets in (one, own) for key in (b"", b"key")} == {32}


def test_marks_and_hashes_are_of_their_secret() -> None:
    assert Ticket.short(b"x", b"a" * 32) != Ticket.short(b"x", b"b" * 32)
    ticket = Ticket(AnswerIdentity(bytes(16), 1, 2), *[bytes(6)] * 3)
    assert ticket.positions_key(b"a" * 32) != ticket.positions_key(b"b" * 32)


def test_a_stream_goes_on_where_the_secret_is_the_same() -> None:
    events = streamed(fake_engine(), PATH, FIELDS, config=SHARED)
    last = events[2].last_id
    assert streamed(fake_engine(), PATH, FIELDS, last, config=SHARED)[-1].data == events[-1].data
    others = ServerConfig(), ServerConfig(answers=Answers(stream_secret="another of sixteen bytes"))
    for config in others:
        assert streamed(fake_engine(), PATH, FIELDS, last, config=config, status=403)["code"] == "foreign_event_id"


def test_a_short_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="--stream-secret has fewer than 16 bytes") as refused:
        ServerConfig(answers=Answers(stream_secret="fifteen letters"))
    assert "fifteen" not in str(refused.value)
    assert "letters" not in repr(ServerConfig(answers=Answers(stream_secret="sixteen letters!")))
