"""``python -m tests.support.scripted_server``: a server whose model says what the conversation tells it to.

With the arguments SILENCE and PING its streams have nothing but comments for so many seconds before their first token.

It prints its URL, and ends by SIGTERM. Behind the last ``SCRIPT:`` of a prompt is a JSON list of texts. The first is
said when no message of the assistant comes after it, the second after one, and so on: a client that loses a turn is
given the same text again. ``$RESULT`` in a text is the last result of a tool in the prompt.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.config import DEFAULT_CONFIG
from jaxgen.server.limits import Connections
from tests.support.fakes import FakeEngine, StepTimeModel
from tests.support.live_server import serve
from tests.support.tool_engines import tokens_of, tool_engine

MARK = "SCRIPT:"
NOTHING = "There is no script."
CONTEXT = 1_000_000
"""Tokens are bytes, nearly, and what coding agents send is long."""


def text_for(prompt: str) -> str:
    """What the script in a prompt of the format hermes has for this turn; its last text once it has ended."""
    _, mark, rest = prompt.rpartition(MARK)
    if not mark:
        return NOTHING
    texts, end = json.JSONDecoder().raw_decode(rest.lstrip())
    turn = rest[end:].count("<|im_start|>assistant") - 1  # the last one is what is asked for
    text: str = texts[min(turn, len(texts) - 1)]
    *_, result = ["", *re.findall("<tool_response>(.*?)</tool_response>", rest, re.DOTALL)]
    return text.replace("$RESULT", json.dumps(result)[1:-1] if text.startswith("<tool_call>") else result)


def scripted_engine() -> FakeEngine:
    engine = tool_engine("hermes", "")

    def reply(request: Request) -> Sequence[int]:
        prompt = "".join(map(engine.tokenizer.token_text, request.prompt))
        return tokens_of(text_for(prompt), "hermes", engine.tokenizer)

    engine.reply, engine.model = reply, replace(engine.model, max_model_len=CONTEXT)
    return engine


def silent(seconds: float) -> StepTimeModel:
    async def pace(request: Request, index: int) -> None:
        await asyncio.sleep(0 if index else seconds)

    return pace


def main() -> None:
    silence, ping = map(float, sys.argv[1:] or (0, DEFAULT_CONFIG.connections.sse_ping_interval_s))
    engine, config = scripted_engine(), replace(DEFAULT_CONFIG, connections=Connections(sse_ping_interval_s=ping))
    engine.pace = silent(silence)
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with serve(create_app(engine, config)) as url:
        sys.stdout.write(f"{url}/v1\n")
        sys.stdout.flush()
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
