"""LiteLLM's proxy in front of the server, asked by Anthropic's SDK as Claude Code asks it, and by OpenAI's."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import anthropic
import openai
import pytest

from tests.clients.conftest import SCRIPTED, call, script

pytestmark = pytest.mark.clients
CONFIG = """\
model_list:
  - model_name: by-responses
    litellm_params: {{model: openai/{model}, api_base: {url}/v1, api_key: none}}
  - model_name: by-chat
    litellm_params: {{model: hosted_vllm/{model}, api_base: {url}/v1, api_key: none}}
general_settings: {{master_key: {key}}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""
KEY = "sk-of-this-test-alone-0123456789"  # it refuses to start without one
START_SECONDS = 120
TOOL: Any = {
    "name": "look_up",
    "description": "Look a city up.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def proxy(scripted: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The proxy's base URL."""
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "config.yaml").write_text(CONFIG.format(model=SCRIPTED, url=scripted, key=KEY))
    port = _free_port()
    command = [str(Path(sys.executable).parent / "litellm"), "--config", "config.yaml"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(f"{url}/health/liveliness"):
            text = (folder / "log").read_text()
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False


MODELS = pytest.mark.parametrize("model", ["by-responses", "by-chat"])


@MODELS
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_messages_in_a_tool_loop(proxy: str, model: str, streamed: bool) -> None:
    """The loop of a coding agent: a system prompt with marks for caches, two tools at once, their results, the end."""
    turns = ["I look. " + call("look_up", city="Bern") + call("look_up", city="Basel"), "The last is $RESULT."]
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": script(*turns)}]}]
    system: Any = [{"type": "text", "text": "You count.", "cache_control": {"type": "ephemeral"}}]
    asked: Any = {"model": model, "max_tokens": 500, "tools": [TOOL], "system": system, "messages": messages}
    with anthropic.Anthropic(base_url=proxy, api_key=KEY, max_retries=0) as client:
        for _ in turns:
            if streamed:
                with client.messages.stream(**asked) as stream:
                    text = "".join(stream.text_stream)
                    message = stream.get_final_message()
            else:
                message = client.messages.create(**asked)
                text = "".join(block.text for block in message.content if block.type == "text")
            calls = [block for block in message.content if block.type == "tool_use"]
            assert message.stop_reason == ("tool_use" if calls else "end_turn")
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": f"{one.input['city']} {number}"}
                for number, one in enumerate(calls, 1)
            ]
            messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    assert text == "The last is Basel 2."


@MODELS
def test_chat_streamed(proxy: str, model: str) -> None:
    with openai.OpenAI(base_url=f"{proxy}/v1", api_key=KEY, max_retries=0) as client:
        asked: Any = {"model": model, "messages": [{"role": "user", "content": script("Well said.")}]}
        with client.chat.completions.stream(**asked) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == "Well said."
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**asked, temperature=3)
        assert "temperature" in caught.value.message


def test_responses(proxy: str) -> None:
    with openai.OpenAI(base_url=f"{proxy}/v1", api_key=KEY, max_retries=0) as client:
        first = client.responses.create(model="by-responses", input=script("One.", "Two."))
        second = client.responses.create(model="by-responses", input="Go on.", previous_response_id=first.id)
    assert (first.output_text, second.output_text) == ("One.", "Two.")
