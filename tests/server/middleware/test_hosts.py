"""Pages whose own name leads to a server without keys are refused by that name."""

import asyncio
from pathlib import Path

import httpx2
import pytest
from starlette.types import Message, Receive, Scope, Send

from jaxgen.core.errors import ConfigError
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.flags.server_flags import server_config
from jaxgen.server.limits import Batches
from jaxgen.server.middleware.context import CONTEXT, RequestContext
from jaxgen.server.middleware.hosts import HostMiddleware
from tests.support.live_server import serve
from tests.support.server_app import body, error_of, fake_engine

EVIL = {"host": "evil.example:18320", "origin": "http://evil.example:18320"}


def test_dns_rebinding_reaches_nothing(tmp_path: Path) -> None:
    engine = fake_engine()
    with serve(create_app(engine, ServerConfig(batches=Batches(batch_dir=tmp_path)))) as url:
        made = httpx2.post(f"{url}/v1/files", files={"file": b"secret"}, data={"purpose": "batch"})
        file = f"{url}/v1/files/{made.json()['id']}"
        answers = [
            httpx2.post(f"{url}/v1/completions", json=body(), headers=EVIL),
            httpx2.get(f"{url}/v1/files", headers=EVIL),
            httpx2.get(f"{file}/content", headers={"host": "evil.example"}),
            httpx2.delete(file, headers=EVIL),
            httpx2.get(f"{url}/", headers=EVIL),
        ]
        assert httpx2.get(f"{file}/content").content == b"secret"
    assert {answer.status_code for answer in answers} == {403}
    assert error_of(answers[0].json())["code"] == "host_not_allowed"
    assert "--allowed-hosts evil.example, or with an API key" in error_of(answers[0].json())["message"]
    assert engine.requests == []


def test_with_a_key_any_name_is_answered() -> None:
    headers = {"host": "llm.example", "authorization": "Bearer key"}
    with serve(create_app(fake_engine(), ServerConfig(access=Access(api_keys=("key",))))) as url:
        assert httpx2.get(f"{url}/v1/models", headers=headers).status_code == 200


async def passes(host: str | None, server: tuple[str, int | None] | None, *allowed: str) -> bool:
    """Whether a request gets through."""
    sent: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        sent.append(200)

    async def send(message: Message) -> None:
        sent.append(message.get("status", 0))

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    headers = [] if host is None else [(b"host", host.encode())]
    context = RequestContext("req-1", "GET", "/")
    scope: Scope = {"type": "http", "headers": headers, "server": server, CONTEXT: context}
    await HostMiddleware(app, allowed)(scope, receive, send)
    return sent[0] == 200


LOOPBACK = ("127.0.0.1", 8000)


@pytest.mark.parametrize(
    ("host", "server", "allowed", "through"),
    [
        *[
            (host, LOOPBACK, (), True)
            for host in ("localhost", "LOCALHOST:8000", "a.localhost", "127.0.0.1:8000", None)
        ],
        *[(host, LOOPBACK, (), True) for host in ("[::1]:8000", "[::1]", "192.168.1.5", "localhost.")],
        *[(host, LOOPBACK, (), False) for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example")],
        *[(host, LOOPBACK, (), False) for host in ("notlocalhost", "evil.example:localhost", "evil.example.")],
        *[("evil.example", (name, 1), (), False) for name in ("::1", "127.8.9.1", "::ffff:127.0.0.1")],
        *[("llm.example", server, (), True) for server in (("10.0.0.1", 1), ("/run/socket", None), None)],
        *[("llm.example:80", LOOPBACK, (name,), True) for name in ("llm.example", "*.example", "*")],
        ("other.example", ("10.0.0.1", 1), ("llm.example",), False),
        ("example", LOOPBACK, ("*.example",), False),
        ("badexample", LOOPBACK, ("*.example",), False),
    ],
)
def test_names(
    host: str | None, server: tuple[str, int | None] | None, allowed: tuple[str, ...], through: bool
) -> None:
    assert asyncio.run(passes(host, server, *allowed)) is through


def test_the_flag() -> None:
    args = make_parser().parse_args(["--allowed-hosts", "llm.example", "--allowed-hosts", "*.local"])
    assert server_config(args).access.allowed_hosts == ("llm.example", "*.local")
    for wrong in ("http://llm.example", "llm.example:80", "", "LLM.example", "*example"):
        with pytest.raises(ConfigError, match="--allowed-hosts"):
            ServerConfig(access=Access(allowed_hosts=(wrong,)))
