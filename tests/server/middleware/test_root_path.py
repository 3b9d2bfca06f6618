"""``--root-path``: a proxy in front that passes its prefix on, or strips it."""

import logging
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from jaxgen.core.errors import ConfigError
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, Proxy, ServerConfig
from tests.support.server_app import body, client_of, fake_engine

AI = ServerConfig(proxy=Proxy(root_path="/ai/x"), access=Access(api_keys=("secret",)))
KEY = {"authorization": "Bearer secret"}


@pytest.mark.parametrize("prefix", ["", "/ai/x"])
def test_routes_are_found_with_the_prefix_and_without(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "jaxgen")
    with client_of(fake_engine(), AI) as client:
        assert client.get(f"{prefix}/health").status_code == 200, "a probe needs no key"
        assert client.get(f"{prefix}/v1/models").status_code == 401
        assert client.post(f"{prefix}/v1/completions", json=body(), headers=KEY).status_code == 200
        assert client.get(f"{prefix}/openapi.json", headers=KEY).json()["servers"] == [{"url": "/ai/x"}]
    requests = [record for record in caplog.records if hasattr(record, "fields")]
    assert [record.fields["path"] for record in requests][:3] == ["/health", "/v1/models", "/v1/completions"]
    assert requests[0].levelno == logging.DEBUG, "a probe, also behind a prefix"


@pytest.mark.parametrize("path", ["/ai", "/ai/xhealth", "/ai/x/ai/x/health", "/other/health"])
def test_other_paths_are_no_routes(path: str) -> None:
    with client_of(fake_engine(), AI) as client:
        assert client.get(path, headers=KEY).status_code == 404


@pytest.mark.parametrize("config", [AI, replace(AI, ui=False)])
def test_the_prefix_with_a_slash_is_the_page_or_the_list(config: ServerConfig) -> None:
    with client_of(fake_engine(), config) as client:
        assert client.get("/ai/x/").content == client.get("/").content
        answer = client.get("/ai/x", follow_redirects=False)
        if config.ui:
            assert (answer.status_code, answer.headers["location"]) == (307, "x/"), "relative, so of any host and proxy"
            assert answer.url.join("x/").path == "/ai/x/"
        else:
            assert answer.content == client.get("/").content


@pytest.mark.parametrize("prefix", ["/live", "/docs"])
def test_a_prefix_may_be_a_name_of_the_page_too(prefix: str) -> None:
    with client_of(fake_engine(), ServerConfig(proxy=Proxy(root_path=prefix))) as client:
        for path in ("/live/live.js", "/docs", "/health"):
            assert client.get(f"{prefix}{path}").status_code == 200
        for stripped in ("/live/live.js", "/health"):
            assert client.get(stripped).content == client.get(f"{prefix}{stripped}").content
        assert client.get(prefix, follow_redirects=False).headers["location"] == f"{prefix[1:]}/"


def test_without_a_prefix_none_is_taken_or_told() -> None:
    with client_of(fake_engine()) as client:
        assert client.get("/ai/x/health").status_code == 404
        assert "servers" not in client.get("/openapi.json").json()


def test_below_the_mount_point_of_another_app() -> None:
    app = Starlette(routes=[Mount("/llm", app=create_app(fake_engine(), ServerConfig(proxy=Proxy(root_path="/ai"))))])
    with TestClient(app) as client:
        for path in ("/llm/openapi.json", "/llm/ai/openapi.json"):
            assert client.get(path).json()["servers"] == [{"url": "/llm/ai"}]


@pytest.mark.parametrize("prefix", ["/v1", "/health", "/v1/models"])
def test_a_prefix_of_routes_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match=f"--root-path {prefix} is where the server's own"):
        create_app(fake_engine(), ServerConfig(proxy=Proxy(root_path=prefix)))
