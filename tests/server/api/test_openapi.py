"""The documents that say what the server does agree with what it does."""

from typing import Any

import pytest
from starlette.routing import Route

from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.limits import Limits
from jaxgen.server.openapi import ROUTES
from jaxgen.server.schema.base import CompletionRequest
from tests.support.fakes import MODEL
from tests.support.server_app import client_of, fake_engine
from tests.support.tool_templates import HERMES


def document(path: str, config: ServerConfig | None = None, **fields: Any) -> dict[str, Any]:
    with client_of(fake_engine(**fields), config or ServerConfig()) as client:
        found: dict[str, Any] = client.get(path, headers={"Authorization": "Bearer key"}).json()
    return found


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    served = {
        (method, route.path.replace(":path", ""))
        for route in create_app(fake_engine(), ServerConfig(ui=False)).routes
        if isinstance(route, Route) and route.path != "/"
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == {(route.method, route.path) for route in ROUTES}


def test_the_fields_are_those_that_bodies_are_checked_for() -> None:
    found = document("/openapi.json")
    assert found["openapi"] == "3.1.0"
    schemas = found["components"]["schemas"]
    operation = found["paths"]["/v1/completions"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    assert set(schemas[name]["properties"]) == set(CompletionRequest.model_fields)
    assert schemas[name]["additionalProperties"] is False
    assert {"409", "429"} <= set(operation["responses"])
    assert [one["name"] for one in operation["parameters"]] == ["Last-Event-ID", "X-Event-IDs"]
    assert "security" not in found


def bounds_of(field: dict[str, Any]) -> list[tuple[float, float]]:
    """A value at each bound of the field, and one beyond it."""
    integer = {"type": "integer"} in field.get("anyOf", ())
    step = 1 if integer else 0.001
    found = []
    for name, sign in (("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1)):
        if name in field:
            edge = field[name]
            found.append((edge + step, edge) if name == "exclusiveMinimum" else (edge, edge + sign * step))
    return found


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_ranges_in_the_document_are_those_that_requests_are_checked_for(path: str) -> None:
    plain = ChatFormat("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    engine = fake_engine(model=ModelInfo(MODEL, 128, 400, chat=plain))
    content: dict[str, Any] = (
        {"prompt": "Say"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Say"}]}
    )
    content = {"input": "Say"} if path == "/v1/responses" else content
    content |= {"max_tokens": 5} if path == "/v1/messages" else {}
    names = {"/v1/completions": "CompletionRequest", "/v1/chat/completions": "ChatRequest"}
    names |= {"/v1/responses": "ResponsesRequest", "/v1/messages": "MessagesRequest"}
    checked = set()
    with client_of(engine) as client:
        schema = client.get("/openapi.json").json()["components"]["schemas"][names[path]]
        for name, field in schema["properties"].items():
            extra = {"logprobs": True} if path == "/v1/chat/completions" and name == "top_logprobs" else {}
            for allowed, refused in bounds_of(field):
                assert field["description"]
                checked.add(name)
                body = {"model": MODEL, **content, **extra}
                answer = client.post(path, json={**body, name: allowed})
                assert answer.status_code == 200, (name, allowed, answer.text)
                answer = client.post(path, json={**body, name: refused})
                assert answer.status_code == 400, (name, refused)
                assert name in (
                    answer.json()["error"]["message"] if path == "/v1/messages" else answer.json()["error"]["param"]
                )
    assert {"temperature", "top_p", "top_k"} <= checked


def test_every_reference_leads_somewhere() -> None:
    found = document("/openapi.json")
    schemas = found["components"]["schemas"]

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [reference for item in value.values() for reference in references(item)]
        return [reference for item in value for reference in references(item)] if isinstance(value, list) else []

    assert references(found)
    assert {reference.rpartition("/")[2] for reference in references(found)} <= set(schemas)


def test_keys_are_asked_for_and_not_shown() -> None:
    config = ServerConfig(access=Access(api_keys=("key",)))
    found = document("/openapi.json", config)
    assert found["security"] == [{"key": []}]
    paths = found["paths"]
    assert "401" in paths["/metrics"]["get"]["responses"]
    assert "401" not in paths["/health"]["get"]["responses"]
    assert "api_keys" not in document("/capabilities", config)["limits"]


@pytest.mark.parametrize(
    ("chat", "parser"), [(None, None), (ChatFormat("x", {}), None), (ChatFormat(HERMES, {}), "hermes")]
)
def test_capabilities(chat: ChatFormat | None, parser: str | None) -> None:
    found = document("/capabilities", ServerConfig(limits=Limits(max_n=3)), model=ModelInfo(MODEL, 128, 400, chat=chat))
    assert (found["model"], found["conversations"]) == (MODEL, chat is not None)
    assert found["tool_call_parser"] == parser
    assert (found["embedded"], found["generates"]) == (False, True)
    if chat is None:
        assert found["chat_template"] is None
    else:
        plain, with_tools = found["chat_template"]["without_tools"], found["chat_template"]["with_tools"]
        assert plain["user"] == ("as it is" if parser else "refused: the template leaves words out")
        assert (with_tools is None) == (parser is None)
    assert (found["limits"]["max_n"], found["limits"]["max_model_len"], found["limits"]["max_logprobs"]) == (3, 128, 20)
    assert found["routes"]["POST /v1/completions"] == sorted(CompletionRequest.model_fields)
    assert found["routes"]["GET /health"] == []
    assert found["resumable_streams"] == ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
