"""Pages of other origins are refused unless their origins are named; then they can read every answer, refusals too."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from jaxgen.core.errors import ConfigError
from jaxgen.server.cli import main
from jaxgen.server.config import DEFAULT_CONFIG, Access, Cors, ServerConfig
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.flags.server_flags import cors_of
from jaxgen.server.limits import Batches
from tests.support.server_app import body, client_of, error_of, fake_engine

HERE, ELSEWHERE, OWN = "https://here.example", "https://elsewhere.example", "http://testserver"
CONFIG = replace(DEFAULT_CONFIG, access=Access(api_keys=("secret",), cors=Cors(origins=(HERE,))))
KEY = {"authorization": "Bearer secret"}


def preflight(client: TestClient, origin: str, *, method: str = "POST", headers: str = "authorization") -> int:
    asked = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": headers}
    answer = client.options("/v1/completions", headers=asked)
    assert (answer.headers.get("access-control-allow-origin") == origin) == (origin == HERE)
    return answer.status_code


def test_it_is_off_by_default() -> None:
    with client_of(fake_engine()) as client:
        for origin in (HERE, OWN):
            answer = client.post("/v1/completions", json=body(), headers={"origin": origin})
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert client.options("/v1/completions", headers={"origin": HERE}).status_code == 403
        assert client.options("/v1/completions", headers={"origin": OWN}).status_code == 405


def typeless(client: TestClient, origin: str | None) -> httpx2.Response:
    """What a browser sends for any page without asking: a body of no type."""
    headers = {} if origin is None else {"origin": origin}
    return client.post("/v1/completions", content=json.dumps(body()), headers=headers)


@pytest.mark.parametrize("origin", [ELSEWHERE, "null", "http://testserver:81", "http://testserver.example", "file://"])
def test_pages_of_other_origins_have_nothing_computed(origin: str, tmp_path: Path) -> None:
    for cors in (None, Cors(origins=(HERE,))):
        engine = fake_engine()
        with client_of(engine, ServerConfig(access=Access(cors=cors), batches=Batches(batch_dir=tmp_path))) as client:
            form: Any = {"files": {"file": b"x"}, "data": {"purpose": "batch"}}
            answers = [typeless(client, origin), client.post("/v1/files", **form, headers={"origin": origin})]
            assert client.get("/v1/files").json()["data"] == []
        for answer in answers:
            assert (answer.status_code, error_of(answer.json())["code"]) == (403, "origin_not_allowed")
            assert answer.headers["x-request-id"]
        assert engine.requests == []


def test_pages_of_its_own_and_named_ones_and_programs_are_answered() -> None:
    with client_of(fake_engine(), ServerConfig(access=Access(cors=Cors(origins=(HERE,))))) as client:
        for origin in (None, OWN, OWN.replace("http", "https"), HERE, "chrome-extension://abc", "vscode-webview://x"):
            assert typeless(client, origin).status_code == 200, origin
    with client_of(fake_engine(), ServerConfig(access=Access(cors=Cors(origins=("*",))))) as client:
        for origin in ("null", ELSEWHERE):
            assert typeless(client, origin).status_code == 200, origin
    with client_of(fake_engine(), ServerConfig(access=Access(check_origin=False))) as client:
        assert typeless(client, ELSEWHERE).status_code == 200
    with client_of(fake_engine(), ServerConfig(access=Access(api_keys=("secret",)))) as client:
        assert typeless(client, ELSEWHERE).status_code == 401
        client.headers["authorization"] = "Bearer secret"
        assert typeless(client, ELSEWHERE).status_code == 200  # as behind a proxy that changes Host


def test_a_preflight_request_needs_no_key() -> None:
    with client_of(fake_engine(), CONFIG) as client:
        assert preflight(client, HERE, headers="authorization,content-type,x-stainless-os") == 200
        assert preflight(client, ELSEWHERE) == 400


def test_methods_and_headers_can_be_narrowed() -> None:
    cors = Cors(origins=(HERE,), methods=("POST",), headers=("authorization",))
    with client_of(fake_engine(), ServerConfig(access=replace(CONFIG.access, cors=cors))) as client:
        assert preflight(client, HERE) == 200
        assert preflight(client, HERE, method="DELETE") == 400
        assert preflight(client, HERE, headers="x-other") == 400


def test_every_answer_can_be_read_by_the_page() -> None:
    engine = fake_engine()
    asked = {"origin": HERE}
    with client_of(engine, CONFIG) as client:
        answers = [
            client.post("/v1/completions", json=body(), headers=asked | KEY),
            client.post("/v1/completions", json=body(), headers=asked),
            client.post("/v1/completions", json=body(n=0), headers=asked | KEY),
            client.get("/nowhere", headers=asked | KEY),
        ]
        engine.model = None  # type: ignore[assignment]
        answers.append(client.post("/v1/completions", json=body(), headers=asked | KEY))
    assert [answer.status_code for answer in answers] == [200, 401, 400, 404, 500]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == HERE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert answer.headers["x-request-id"]
    error_of(answers[-1].json())


def test_another_origin_is_not_named_in_the_answer() -> None:
    with client_of(fake_engine(), CONFIG) as client:
        answer = client.post("/v1/completions", json=body(), headers={"origin": ELSEWHERE} | KEY)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_flags() -> None:
    def of(*flags: str) -> Cors | None:
        return cors_of(make_parser().parse_args(list(flags)))

    assert of() is None
    assert of("--allowed-origins", "*") == Cors(origins=("*",))
    named = of("--allowed-origins", HERE, "--allowed-origins", "http://localhost:3000", "--allow-credentials")
    assert named == Cors(origins=(HERE, "http://localhost:3000"), credentials=True)
    for flags, said in (
        (("--allowed-methods", "GET"), "--allowed-methods needs --allowed-origins"),
        (("--allowed-headers", "x-a"), "--allowed-headers needs --allowed-origins"),
        (("--allow-credentials",), "--allow-credentials needs --allowed-origins"),
        (("--allowed-origins", "*", "--allow-credentials"), "needs origins by name"),
        (("--allowed-origins", '["*"]'), "is not a valid origin"),
        (("--allowed-origins", "here.example"), "is not a valid origin"),
        (("--allowed-origins", f"{HERE}/path"), "is not a valid origin"),
        (("--allowed-origins", "*", "--allowed-origins", HERE), "'*' is not a valid origin"),
        (("--allowed-origins", HERE, "--allowed-methods", "GET,POST"), "--allowed-methods 'GET,POST'"),
    ):
        with pytest.raises(ConfigError) as refused:
            of(*flags)
        assert said in str(refused.value), flags


def test_config_prints_origins_as_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--allowed-origins", HERE]) == 0
    assert f"allowed-origins:\n- {HERE}\n" in capsys.readouterr().out


@pytest.mark.parametrize("origin", [HERE, ELSEWHERE])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models"])
def test_pages_on_public_addresses_may_reach_a_private_one(origin: str, path: str) -> None:
    """If their origins are allowed: the browser asks for it in its preflight request."""
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-private-network": "true",
    }
    with client_of(fake_engine(), CONFIG) as client:
        answer = client.options(path, headers=asked)
        del asked["access-control-request-private-network"]
        usual = client.options(path, headers=asked)
    assert (answer.status_code == 200) == (origin == HERE)
    if origin == HERE:
        assert answer.headers["access-control-allow-private-network"] == "true"
    else:
        assert "access-control-allow-origin" not in answer.headers
    assert "access-control-allow-private-network" not in usual.headers
