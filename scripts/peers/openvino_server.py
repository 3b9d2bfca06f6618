"""``-m scripts.peers.openvino_server '{...}'``: OpenVINO GenAI's ContinuousBatchingPipeline behind a TokenServer.

Runs in OpenVINO's environment. The argument has model, port, dynamic_split_fuse, properties, cache_gib, max_num_seqs.
"""

import json
import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai

from scripts.peers.token_server import Emit, NewTokens, TokenRequest, serve


class Pipeline:
    def __init__(self, settings: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = settings["cache_gib"]
        scheduler.max_num_seqs = settings["max_num_seqs"]
        scheduler.dynamic_split_fuse = settings["dynamic_split_fuse"]
        scheduler.enable_prefix_caching = True  # as of the others
        if "max_num_batched_tokens" in settings:
            scheduler.max_num_batched_tokens = settings["max_num_batched_tokens"]
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            settings["model"], scheduler, "CPU", settings["properties"]
        )
        self._handles: dict[int, Any] = {}

    def add(self, number: int, asked: TokenRequest) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = asked.max_tokens, asked.regex is None, False
        if asked.regex is not None:
            config.structured_output_config = openvino_genai.StructuredOutputConfig(regex=asked.regex)
        ids = openvino.Tensor(np.array([asked.prompt], np.int64))
        self._handles[number] = self._pipeline.add_request(number, ids, config)

    def cancel(self, number: int) -> None:
        if handle := self._handles.pop(number, None):
            handle.cancel()

    def has_work(self) -> bool:
        return bool(self._pipeline.has_non_finished_requests())

    def step(self, emit: Emit) -> None:
        self._pipeline.step()
        news = []
        for number, handle in list(self._handles.items()):
            ended = str(handle.get_status()).endswith("FINISHED")  # before the last tokens are read
            # One sequence for each request, so one entry.
            outputs = handle.read().values() if handle.can_read() else ()
            tokens = [token for output in outputs for token in output.generated_ids]
            if tokens or ended:
                news.append(NewTokens(number, tokens, ended))
            if ended:
                del self._handles[number]
        if news:
            emit(news)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    serve(lambda: Pipeline(settings), settings["port"])
