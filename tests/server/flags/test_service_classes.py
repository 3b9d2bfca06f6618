"""Classes of service as flags, in bodies, on /metrics; weights of callers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from jaxgen.core.errors import ConfigError, WouldBeLateError
from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.core.request import Request
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.flags.service_classes import parse_classes
from jaxgen.server.middleware.auth import ApiKeys
from jaxgen.server.requests.service_tier import service_class
from tests.support.fakes import MODEL
from tests.support.server_app import body, client_of, fake_engine

CLASSES = (ServiceClass(name="priority", first_token_seconds=9.0, inter_token_seconds=9.0), ServiceClass(name="flex"))


def test_a_flag_says_name_and_targets() -> None:
    found = parse_classes(["priority ttft=0.5 prompt-rate=512 inter-token=0.05", "flex", "default ttft=9 late=serve"])
    assert found == (
        ServiceClass(name="priority", first_token_seconds=0.5, prompt_rate=512.0, inter_token_seconds=0.05),
        ServiceClass(name="flex"),
        ServiceClass(name="default", first_token_seconds=9.0, serve_late=True),
    )
    assert [one.has_targets for one in found] == [True, False, True]
    assert found[0].first_token_target(1024) == 2.5
    assert found[1].first_token_target(1024) is None


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["ttft=1"], "must begin with a name"),
        ([""], "must begin with a name"),
        (["auto ttft=1"], "'auto'"),
        (["a ttft=soon"], "ttft must be a number, not 'soon'"),
        (["a ttft=-1"], "first_token_seconds must be above 0"),
        (["a inter-token=nan"], "inter_token_seconds must be above 0"),
        (
            ["a tftt=1"],
            "'tftt=1' is not a valid setting: write ttft=..., prompt-rate=..., inter-token=..., late=serve or ",
        ),
        (["a late=perhaps"], "'late=perhaps'"),
        (["a", "a ttft=1"], "--service-class a is given twice"),
    ],
)
def test_a_flag_that_makes_no_sense_is_named(texts: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_classes(texts)
    assert says in str(caught.value)


def test_a_tier_names_a_class() -> None:
    assert service_class("priority", CLASSES) is CLASSES[0]
    assert service_class(None, CLASSES).name == service_class("auto", CLASSES).name == "default"
    own = ServiceClass(name="default", first_token_seconds=1.0)
    assert service_class("auto", (own,)) is service_class("default", (own,)) is own


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_every_route_takes_a_tier_and_refuses_others(path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "ab"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}]},
        "/v1/responses": {"input": "ab"},
    }
    chat = ChatFormat("{{ messages[0].content }}", {})
    engine = fake_engine(model=ModelInfo(MODEL, max_model_len=128, vocab_size=400, chat=chat))
    with client_of(engine, ServerConfig(service_classes=CLASSES)) as client:
        asked = {"model": MODEL, "service_tier": "priority"} | bodies[path]
        answer = client.post(path, json=asked)
        assert answer.status_code == 200, answer.text
        assert engine.requests[-1].service is CLASSES[0]
        if path == "/v1/chat/completions":
            assert ChatCompletion.model_validate(answer.json()).service_tier == "priority"
        refused = client.post(path, json=asked | {"service_tier": "gold"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "service_tier")
        assert "auto, default, priority, flex" in refused.json()["error"]["message"]


def test_a_promise_that_cannot_be_kept_is_a_429_with_a_time() -> None:
    async def late(request: Request, index: int) -> None:
        raise WouldBeLateError("service_tier 'priority' promises ...", retry_after=2.3)

    engine = fake_engine(pace=late)
    with client_of(engine, ServerConfig(service_classes=CLASSES)) as client:
        answer = client.post("/v1/completions", json=body(service_tier="priority"))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "3")
        assert answer.json()["error"]["code"] == "would_be_late"
        metrics = client.get("/metrics").text
    assert _sample(metrics, "priority", "refused") == 1.0
    assert 'jaxgen_request_success_total{finished_reason="refused"' in metrics


def test_what_came_of_promises_is_counted() -> None:
    late = (ServiceClass(name="late", first_token_seconds=1e-9), ServiceClass(name="slow", inter_token_seconds=1e-9))
    with client_of(fake_engine(), ServerConfig(service_classes=(*CLASSES, *late))) as client:
        for tier in ("priority", "priority", "late", "slow", "flex"):
            assert client.post("/v1/completions", json=body(service_tier=tier)).status_code == 200
        metrics = client.get("/metrics").text
    assert _sample(metrics, "priority", "kept") == 2.0
    assert _sample(metrics, "late", "late_first_token") == 1.0
    assert _sample(metrics, "slow", "late_token") == 1.0
    assert 'service_class="flex"' not in metrics


@pytest.mark.parametrize(("seconds", "outcome"), [(9.0, "kept"), (1e-9, "late_first_token")])
def test_without_a_token_to_come_the_answer_is_held_to_the_first_tokens_target(seconds: float, outcome: str) -> None:
    """Embeddings are of the class of requests that name none, without what it promises between tokens."""
    own = ServiceClass(name="default", first_token_seconds=seconds, inter_token_seconds=9.0)
    engine = fake_engine()
    with client_of(engine, ServerConfig(service_classes=(own,))) as client:
        assert client.post("/v1/embeddings", json={"model": MODEL, "input": ["a", "b"]}).status_code == 200
        assert client.post("/v1/completions", json=body(max_tokens=0)).status_code == 200
        metrics = client.get("/metrics").text
    embedded = replace(own, inter_token_seconds=None, serve_late=True)
    assert [request.service for request in engine.requests] == [embedded, embedded, own]
    assert _sample(metrics, "default", outcome) == 3.0


def test_capabilities_have_the_classes() -> None:
    with client_of(fake_engine(), ServerConfig(service_classes=CLASSES)) as client:
        found = client.get("/capabilities").json()["service_classes"]
    assert [one["name"] for one in found] == ["priority", "flex"]


def test_a_key_file_has_weights_and_callers_are_tenants(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# keys\none weight=2\n\ntwo\n")
    keys = ApiKeys((), file)
    assert [keys.rights(keys.caller(key) or "").weight for key in (b"one", b"two")] == [2.0, 1.0]
    engine = fake_engine()
    with client_of(engine, ServerConfig(access=Access(api_key_file=file))) as client:
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.post("/v1/completions", json=body(), headers=headers).status_code == 200
    first, second = engine.requests
    assert (first.tenant_weight, second.tenant_weight) == (2.0, 1.0)
    assert first.tenant != second.tenant


@pytest.mark.parametrize("line", ["one weight=0", "one weight=x", "one heavy", "one weight=2 weight=3", "one size=2"])
def test_a_key_file_with_nonsense_behind_a_key_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(line)
    with pytest.raises(ConfigError, match="weight=NUMBER"):
        ApiKeys((), file)


def _sample(metrics: str, name: str, outcome: str) -> float:
    (line,) = [
        line
        for line in metrics.splitlines()
        if line.startswith("jaxgen_service_class_requests_total{")
        and f'service_class="{name}"' in line
        and f'outcome="{outcome}"' in line
    ]
    return float(line.rpartition(" ")[2])


def test_the_target_between_tokens_is_of_the_default_class() -> None:
    (own,) = parse_classes((), 0.05)
    assert (own.name, own.inter_token_seconds, own.serve_late) == ("default", 0.05, True)
    assert parse_classes(["fast ttft=1"], 0.05)[1] == own


@pytest.mark.parametrize(
    ("texts", "target", "says"),
    [
        ((), 0.0, "--inter-token-target 0 must be above 0 and finite"),
        ((), float("inf"), "--inter-token-target inf must be above 0"),
        (["default ttft=1"], 0.05, "conflicts with --service-class default"),
    ],
)
def test_a_target_between_tokens_that_cannot_be(texts: list[str], target: float, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_classes(texts, target)
