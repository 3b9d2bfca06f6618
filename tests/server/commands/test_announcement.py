"""What a server that is ready prints: where it is, and a request that fits its model."""

import json
import shlex
from pathlib import Path

import pytest

from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.core.stats import EngineStats, FixedPace
from jaxgen.server.commands.announcement import DEMO_NOTE, Place, pace_line, ready_lines
from jaxgen.server.config import Access, ServerConfig

CHAT = ChatFormat("{{ messages }}", {})
PLACE = Place("http://here:1")


@pytest.mark.parametrize(
    ("model", "route", "field"),
    [
        (ModelInfo("m", 128, 400), "completions", "prompt"),
        (ModelInfo("m", 128, 400, chat=CHAT), "chat/completions", "messages"),
        (ModelInfo("m", 128, 400, chat=CHAT, embedded=True), "completions", "prompt"),
        (ModelInfo("m", 128, 400, chat=CHAT, generates=False), "embeddings", "input"),
    ],
)
def test_three_lines_say_where_it_is_and_how_to_try_it(model: ModelInfo, route: str, field: str) -> None:
    url, playground, request = ready_lines(model, ServerConfig(), PLACE)
    assert url == f"m{f' ({DEMO_NOTE})' if model.embedded else ''} is ready at http://here:1/v1"
    assert playground == "Playground: http://here:1/"
    curl, asked, *headers, _, body = shlex.split(request.removeprefix("Try: "))
    assert (curl, asked) == ("curl", f"http://here:1/v1/{route}")
    assert headers == ["-H", "Content-Type: application/json"]
    assert {"model", field} <= set(json.loads(body))


def test_what_the_configuration_changes() -> None:
    """Without a web UI, or at a Unix socket, there is no playground; with keys the request needs one."""
    model = ModelInfo("m", 128, 400, note="a note")
    without = ready_lines(model, ServerConfig(ui=False), PLACE)
    assert [one.partition(" ")[0] for one in without] == ["m", "Try:"]
    socket = Place("http://localhost", "the Unix socket /s, ", "--unix-socket /s ", browsable=False)
    url, request = ready_lines(model, ServerConfig(), socket)
    assert url == "m (a note) is ready at the Unix socket /s, http://localhost/v1"
    assert request.startswith("Try: curl --unix-socket /s http://localhost/v1/completions -H 'Content-Type")
    for keyed in (ServerConfig(access=Access(api_keys=("k",))), ServerConfig(access=Access(api_key_file=Path("keys")))):
        assert "-H 'Authorization: Bearer YOUR_KEY' " in ready_lines(model, keyed, PLACE)[-1]


def test_the_log_says_how_long_steps_take_and_how_long_they_become() -> None:
    same = pace_line(EngineStats(pace=FixedPace(longest_step=0.2, longest_full_step=0.21, first_token=0.5811)))
    assert same.startswith("expected: a token within 200 ms in 99 of 100 steps, and the first token after 0.58 s per")
    longer = pace_line(EngineStats(pace=FixedPace(longest_step=0.2, longest_full_step=1.43)))
    assert "within 200 ms (1,430 ms with the most requests at once) in 99" in longer
