"""``-m scripts.peers.transformers_server '{...}'``: transformers behind a TokenServer, batching in one of two ways.

Runs in an environment of transformers. The argument has model, port, dtype, batching (static or continuous), threads,
max_num_seqs and, for continuous batching, cache_tokens.
"""

import json
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from scripts.peers.token_server import Emit, Engine, NewTokens, TokenRequest, serve

PAGE_SIZE = 256
MAX_BATCH_TOKENS = 256
"""As OpenVINO's default. Its own is as many as memory holds, so that prompts hold up all others for seconds."""
WAIT_SECONDS = 0.005
"""For a token, before it is looked whether new requests came."""


class Static:
    """``generate`` of all requests that wait; what comes meanwhile is in the next batch."""

    def __init__(self, model: Any, settings: dict[str, Any]) -> None:
        self._model = model
        self._most = settings["max_num_seqs"]
        self._waiting: dict[int, TokenRequest] = {}

    def add(self, number: int, asked: TokenRequest) -> None:
        self._waiting[number] = asked

    def cancel(self, number: int) -> None:
        self._waiting.pop(number, None)

    def has_work(self) -> bool:
        return bool(self._waiting)

    def step(self, emit: Emit) -> None:
        batch = {number: self._waiting.pop(number) for number in list(self._waiting)[: self._most]}
        longest = max(len(asked.prompt) for asked in batch.values())
        padding = [longest - len(asked.prompt) for asked in batch.values()]
        ids = [[0] * n + asked.prompt for n, asked in zip(padding, batch.values(), strict=True)]
        mask = [[0] * n + [1] * (longest - n) for n in padding]
        wanted = {number: asked.max_tokens for number, asked in batch.items()}
        config = GenerationConfig(do_sample=False, max_new_tokens=max(wanted.values()), pad_token_id=0)
        self._model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            generation_config=config,
            streamer=_Streamer(wanted, emit),
        )


class _Streamer(BaseStreamer):
    """``wanted``: tokens of each row, by number of its request; further ones are computed and not sent."""

    def __init__(self, wanted: dict[int, int], emit: Emit) -> None:
        self._wanted = wanted
        self._emit = emit
        self._sent = -1  # the prompts come first

    def put(self, value: torch.Tensor) -> None:
        if self._sent >= 0:
            rows = zip(self._wanted.items(), value.tolist(), strict=True)
            self._emit([NewTokens(number, [token]) for (number, wanted), token in rows if self._sent < wanted])
        self._sent += 1

    def end(self) -> None:
        pass


class Continuous:
    """Its manager of continuous batching, in a thread of its own."""

    def __init__(self, model: Any, settings: dict[str, Any]) -> None:
        config = ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=settings["cache_tokens"] // PAGE_SIZE,
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_requests_per_batch=settings["max_num_seqs"],
        )
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1), continuous_batching_config=config
        )
        self._manager.start()
        self._sent: dict[str, int] = {}

    def add(self, number: int, asked: TokenRequest) -> None:
        self._sent[str(number)] = 0
        settings = {"max_new_tokens": asked.max_tokens, "streaming": True, "eos_token_id": -1}
        self._manager.add_request(asked.prompt, str(number), **settings)

    def cancel(self, number: int) -> None:
        if self._sent.pop(str(number), None) is not None:
            self._manager.cancel_request(str(number))

    def has_work(self) -> bool:
        return bool(self._sent)

    def step(self, emit: Emit) -> None:
        if not self._manager.is_running():
            raise RuntimeError("the manager of continuous batching has ended")
        output = self._manager.get_result(timeout=WAIT_SECONDS)
        news = []
        while output is not None:
            if output.error is not None:
                raise RuntimeError(output.error)
            if output.request_id in self._sent:
                tokens = output.generated_tokens[self._sent[output.request_id] :]
                news.append(NewTokens(int(output.request_id), list(tokens)))
                self._sent[output.request_id] += len(tokens)
                if output.is_finished():
                    del self._sent[output.request_id]
            output = self._manager.get_result(timeout=0.0)
        if news:
            emit(news)


def make_engine(settings: dict[str, Any]) -> Engine:
    torch.set_num_threads(settings["threads"])
    torch.set_grad_enabled(False)
    dtype = getattr(torch, settings["dtype"])
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=dtype, attn_implementation="sdpa")
    # Its end token would end an answer early.
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    return (Static if settings["batching"] == "static" else Continuous)(model, settings)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    serve(lambda: make_engine(settings), settings["port"])
