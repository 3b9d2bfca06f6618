"""LLM: the engine inside a program. A composition root: it joins weights, tokenizer and engine."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import jax
import psutil
from tqdm import tqdm

from jaxgen.async_engine import AsyncEngine
from jaxgen.config import DType, EngineConfig, EngineOptions, ModelConfig
from jaxgen.engine import Engine
from jaxgen.memory_plan import DeviceMemory, block_bytes, resolve
from jaxgen.models import abstract_params
from jaxgen.programs import CompiledStep, compile_step
from jaxgen.request import FinishReason, ModelInfo, Request, SamplingParams, TokenEvent
from jaxgen.tokenizer import Tokenizer
from weights.hf_config import read_eos_token_ids
from weights.load import DEMO, default_model, load_model_config, load_params, resolve_model

Prompt = str | Sequence[int]
TINY_NOTE = "a tiny random model made on the spot, whose text means nothing; name a real one with --model"


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one prompt. ``tokens`` includes the EOS or stop token that ended it; ``text`` does not."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason


def device_memory() -> DeviceMemory:
    """What the default device may use; on an accelerator JAX's own limit, which XLA_PYTHON_CLIENT_MEM_FRACTION sets."""
    device = jax.devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    return DeviceMemory(device.platform, stats["bytes_limit"] if stats else psutil.virtual_memory().available)


def compile_to_fit(
    options: EngineOptions, model: ModelConfig, config: EngineConfig, memory: DeviceMemory, params_bytes: int
) -> tuple[EngineConfig, CompiledStep]:
    """Compile the step; where the program's own temporaries leave less room than was guessed, plan and compile again.

    Raises ConfigError when nothing fits. The context length that was promised stays.
    """
    compiled = compile_step(model, config)
    cache_bytes = config.cache.num_blocks * block_bytes(model, config.cache.block_size)
    if params_bytes + cache_bytes + compiled.temporary_bytes <= memory.free_bytes:
        return config, compiled
    options = replace(options, max_model_len=config.scheduler.max_model_len)
    config = resolve(options, model, memory, params_bytes=params_bytes, temporary_bytes=compiled.temporary_bytes)
    return config, compile_step(model, config)


def open_engine(
    model: str | None = None,
    *,
    served_name: str | None = None,
    dtype: DType | Literal["auto"] = "auto",
    options: EngineOptions | None = None,
    progress: bool = False,
) -> AsyncEngine:
    """An engine for a model directory or hub id (None: the embedded default), not started yet.

    Reads configuration and tokenizer and plans memory here; loads and compiles in the engine's thread after ``start``.
    Raises ConfigError naming what is wrong with a flag or a file.
    """
    directory = resolve_model(model) if model else default_model()
    model_config = load_model_config(directory, dtype)
    tokenizer = Tokenizer.from_directory(directory)
    eos_token_ids = read_eos_token_ids(directory)
    options = options or EngineOptions()
    memory = device_memory()
    params_bytes = sum(p.size * p.dtype.itemsize for p in abstract_params(model_config).values())
    config = resolve(options, model_config, memory, params_bytes=params_bytes)

    def build() -> Engine:
        params = load_params(directory, model_config, progress=progress)
        with tqdm(total=1, desc="compiling the step", unit="program", disable=not progress) as bar:
            fitting, compiled = compile_to_fit(options, model_config, config, memory, params_bytes)
            bar.update()
        return Engine(model_config, fitting, params, eos_token_ids, compiled=compiled)

    info = ModelInfo(
        served_name or model or "jaxgen-default",
        config.scheduler.max_model_len,
        model_config.vocab_size,
        note=TINY_NOTE if model is None and directory != DEMO else "",
    )
    return AsyncEngine(info, tokenizer, build)


class LLM:
    """A model to call from a program.

    >>> llm = LLM("DIRECTORY")
    >>> llm.generate(["def main():"], SamplingParams(max_tokens=8))[0].text

    Usable from any number of threads and event loops at once; requests are batched together. ``close`` it, or use it as
    a context manager, to end its thread.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        dtype: DType | Literal["auto"] = "auto",
        progress: bool = False,
        **options: Any,
    ):
        """Load and compile; ``options`` are the fields of EngineOptions. Raises ConfigError."""
        self.engine = open_engine(model, dtype=dtype, options=EngineOptions(**options), progress=progress)
        self._ids = count()
        self.engine.start()
        self.engine.wait_ready()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's thread and give its memory back."""
        self.engine.stop()

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | None = None) -> list[Completion]:
        """Continue every prompt, all at once; answers come in the order of the prompts.

        A prompt is a string or token ids. Raises RequestRefusedError for one that can never run, RuntimeError when a
        step fails; the other requests of the call are then aborted.
        """

        async def complete_all() -> list[Completion]:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._complete(prompt, params)) for prompt in prompts]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None  # the one that ended the others
            return [task.result() for task in tasks]

        return _run_to_end(complete_all())

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncGenerator[str, None]:
        """Pieces of the answer's text as they come. Leaving the iteration early aborts the request."""
        async with aclosing(self._events(prompt, params)) as pieces:
            async for text, _ in pieces:
                if text:
                    yield text

    async def _complete(self, prompt: Prompt, params: SamplingParams | None) -> Completion:
        texts: list[str] = []
        tokens: list[int] = []
        reason = FinishReason.STOP  # what it stays when a stop string ends it
        async with aclosing(self._events(prompt, params)) as pieces:
            async for text, event in pieces:
                texts.append(text)
                if event.token is not None:
                    tokens.append(event.token)
                reason = event.finish_reason or reason
        return Completion("".join(texts), tuple(tokens), reason)

    async def _events(
        self, prompt: Prompt, params: SamplingParams | None
    ) -> AsyncGenerator[tuple[str, TokenEvent], None]:
        """Each event with the text that became certain by it, up to a stop string."""
        params = params or SamplingParams()
        tokenizer = self.engine.tokenizer
        ids = tuple(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        text = tokenizer.text_stream(prompt=ids, stop=params.stop, min_tokens=params.min_tokens)
        async with aclosing(self.engine.generate(Request(f"llm-{next(self._ids)}", ids, params))) as events:
            async for event in events:
                if event.finish_reason is FinishReason.ERROR:
                    raise RuntimeError(event.error)
                piece = ""
                if event.token is not None and event.finish_reason is not FinishReason.STOP:
                    piece = text.push(event.token)
                if event.finish_reason is not None:
                    piece += text.flush()
                yield piece, event
                if text.stopped:
                    return


def _run_to_end[T](work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from plain code, also where an event loop runs already (a notebook)."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, work).result()
