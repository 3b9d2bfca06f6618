"""However an answer is cut, into events or off, Anthropic's SDK makes of its stream what the whole answer is."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.server.api.test_reasoning import ENDS, FINAL, thinks
from tests.server.tool_calls.test_endpoints import KINDS
from tests.server.tool_calls.test_parser import TEXTS, written
from tests.support.fakes import FakeEngine
from tests.support.message_requests import WEATHER, F, accumulated, ask_client, without_ids
from tests.support.resumed import every
from tests.support.server_app import client_of
from tests.support.tool_engines import tool_engine

CALLS = [("get_weather", '{"city": "Bé", "n": [1.5, {"a": null}]}'), ("f", "{}")]
THOUGHT = "<think>\nHm é.\n</think>\n\n"
TOOLS: dict[str, Any] = {"tools": [F, WEATHER]}
CASES: dict[str, tuple[FakeEngine, dict[str, Any]]] = {
    "text": (tool_engine("hermes", "one 😀 é"), {}),
    "nothing": (tool_engine("hermes", ""), {}),
    "a stop string": (tool_engine("hermes", "one ENx END of"), {"stop_sequences": ["END"]}),
    "calls": (tool_engine("hermes", f"Yes. {written('hermes', CALLS)}"), TOOLS),
    "a call alone": (
        tool_engine("hermes", written("hermes", CALLS[:1])),
        {**TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ),
    "calls as XML": (tool_engine("qwen3_xml", written("qwen3_xml", CALLS)), TOOLS),
    "short ids": (tool_engine("mistral", written("mistral", CALLS)), TOOLS),
    "a thought": (thinks(f"{THOUGHT}Well."), {}),
    "a thought that is left out": (thinks(f"{THOUGHT}Well."), {"thinking": {"type": "adaptive", "display": "omitted"}}),
    "all of it": (thinks(f"{THOUGHT}Well. {written('hermes', CALLS)}"), TOOLS),
    "messages and thoughts": (
        thinks(f"{FINAL}Hel{ENDS}<|channel|>analysis<|message|>Hm{ENDS}{FINAL}lo", "openai_gptoss"),
        {},
    ),
}


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, TestClient]]:
    """One of each case: an app takes longer to make than most answers."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield {name: stack.enter_context(client_of(engine)) for name, (engine, _) in CASES.items()}


def same(client: TestClient, fields: dict[str, Any]) -> dict[str, Any]:
    """The whole message, which the stream accumulates to."""
    whole = ask_client(client, **fields)
    events = ask_client(client, **fields, stream=True)
    assert without_ids(accumulated(events)) == without_ids(whole)
    return without_ids(whole)


@pytest.mark.parametrize("case", CASES)
def test_every_cut(case: str, clients: dict[str, TestClient]) -> None:
    """Off after each of its tokens, of a long one every few, with each token an event of its own, and into events of
    some tokens."""
    engine, fields = CASES[case]
    tokens = [*engine.reply(None)]  # type: ignore[arg-type]  # the same to everybody
    engine.pace = every(1)
    for most in range(1, len(tokens) + 1, 1 + len(tokens) // 40):
        same(clients[case], {**fields, "max_tokens": most})
    uncut = same(clients[case], fields)
    for at_once in (2, 3, 7, 10_000):
        engine.pace = every(at_once)
        assert same(clients[case], fields) == uncut


@settings(max_examples=15, deadline=None)
@given(kind=st.sampled_from(KINDS), said=TEXTS, most=st.sampled_from([25, 10_000]))
def test_any_text(kind: str, said: str, most: int) -> None:
    with client_of(tool_engine(kind, said)) as client:
        same(client, {**TOOLS, "max_tokens": most})
