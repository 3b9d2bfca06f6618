"""LLM: the engine inside a program."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from jaxgen.assembly.load_engine import load_engine
from jaxgen.core.config import EngineOptions, HubOptions, KernelChoice, LoadFormat
from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.limits import check_dimensions
from jaxgen.core.model_config import DType
from jaxgen.core.model_info import Pooling, PoolingChoice
from jaxgen.core.pooling import unit_vector
from jaxgen.core.quantization import Quantization
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.text.chat_messages import for_template
from jaxgen.text.chat_template import ChatTemplate
from jaxgen.text.conversation import Message
from jaxgen.text.named_templates import TEMPLATE_NAMES, format_of

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one prompt. ``tokens`` includes the EOS or stop token that ended it; ``text`` does not."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason


class LLM:
    """A model to call from a program.

    >>> llm = LLM("DIRECTORY")
    >>> llm.generate(["def main():"], SamplingParams(max_tokens=8))[0].text

    It can be used from any number of threads and event loops at once; their requests are batched together. ``close``
    it, or use it as a context manager, to end its thread.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        dtype: DType | Literal["auto"] = "auto",
        kernels: KernelChoice = "auto",
        quantization: Quantization = "none",
        load_format: LoadFormat = "auto",
        chat_template: Path | str | None = None,
        tokenizer: str | None = None,
        revision: str | None = None,
        download_dir: Path | None = None,
        generation_config: str = "auto",
        pooling: PoolingChoice = "auto",
        cache_dir: Path | str | None = None,
        compilation_cache: bool = True,
        progress: bool = False,
        **options: Any,
    ):
        """Load and compile; see ``load_engine``. ``options`` are the fields of EngineOptions. Raises ConfigError."""
        self.engine = load_engine(
            model,
            dtype=dtype,
            kernels=kernels,
            quantization=quantization,
            load_format=load_format,
            options=EngineOptions(**options),
            chat_template=chat_template,
            hub=HubOptions(revision=revision, download_dir=download_dir),
            tokenizer=tokenizer,
            generation_config=generation_config,
            pooling=pooling,
            cache_dir=cache_dir,
            compilation_cache=compilation_cache,
            progress=progress,
        )
        self._ids = count()
        self.engine.start()
        self.engine.wait_ready()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's thread and free its memory."""
        self.engine.stop()

    @property
    def digest(self) -> str:
        """Name what the bits of answers depend on: engines of one digest give the same (docs/reproducibility.md)."""
        return self.engine.digest

    @property
    def digest_parts(self) -> Mapping[str, Any]:
        """What the digest is made of, as named JSON values."""
        return self.engine.digest_parts

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of prompts that come without any: the model's own, see ``generation_config``."""
        return self.engine.model.defaults.params()

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | None = None) -> list[Completion]:
        """Continue all prompts at once; return the answers in the order of the prompts.

        A prompt is a string or token ids. Raises RequestRefusedError for a prompt that can never run and RuntimeError
        if a step fails; the other requests of the call are then aborted.
        """

        return _run_to_end(_all(self._complete(prompt, params) for prompt in prompts))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Completion]:
        """Answer a conversation, or several at once; return the answers in their order.

        A conversation is a list of messages as OpenAI has them. ``tools`` are shown to the model; its calls are in the
        text of an answer. ``chat_template``: the text of one, in place of the model's. The other arguments are the
        fields of /v1/chat/completions. Raises RequestRefusedError that names the argument, and what ``generate``
        raises.
        """
        several: Any = messages if messages and isinstance(messages[0], Sequence) else [messages]
        template = self._template if chat_template is None else self._given(chat_template)
        prompts = [
            self.engine.tokenizer.encode(
                template.render(
                    _checked(conversation),
                    tools=tools or (),
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    arguments=chat_template_kwargs,
                ),
                special=False,
            )
            for conversation in several
        ]
        return self.generate(prompts, params)

    @cached_property
    def _template(self) -> ChatTemplate:
        """The model's chat template. Raises RequestRefusedError where it has none."""
        chat = self.engine.model.chat
        if chat is None:
            raise RequestRefusedError(
                "this model has no chat template: give LLM one by chat_template, a file or one of jaxgen's own "
                f"({', '.join(TEMPLATE_NAMES)})",
                "chat_template",
            )
        return ChatTemplate(chat)

    def _given(self, text: str) -> ChatTemplate:
        """Return the template of this text. Raises RequestRefusedError for what can only be a name."""
        if "{" not in text:
            raise RequestRefusedError(
                f"chat_template {text!r} is not a Jinja template: chat takes its text, LLM its name or file",
                "chat_template",
            )
        chat = self.engine.model.chat
        return ChatTemplate(
            format_of(text, self.engine.tokenizer) if chat is None else replace(chat, template=text, tool_template=None)
        )

    def embed(self, prompts: Sequence[Prompt], *, dimensions: int | None = None) -> npt.NDArray[np.float32]:
        """Return vectors of length 1, [len(prompts), dimensions], pooled as the model says.

        ``dimensions`` None: all that the model has. A prompt is a string or token ids. Raises
        RequestRefusedError for more dimensions than the model has, and what ``generate`` raises.
        """
        embedding = self.engine.model.embedding
        assert embedding is not None, "all models that can be loaded have one"
        dimensions = embedding.size if dimensions is None else dimensions
        check_dimensions(dimensions, embedding.size)
        vectors = _run_to_end(_all(self._embed(prompt, dimensions, embedding.pooling) for prompt in prompts))
        return np.array(vectors, np.float32).reshape(len(vectors), dimensions)

    async def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncGenerator[str, None]:
        """Yield pieces of the answer's text as they come. Leaving the iteration early aborts the request."""
        async with aclosing(self._events(prompt, params)) as pieces:
            async for text, _ in pieces:
                if text:
                    yield text

    async def _embed(self, prompt: Prompt, dimensions: int, pooling: Pooling) -> npt.NDArray[np.float32]:
        request = Request(f"llm-{next(self._ids)}", self._tokens(prompt), SamplingParams(max_tokens=0), pooling=pooling)
        async with aclosing(self.engine.generate(request)) as events:
            event = await anext(events)  # the only one
        if event.embedding is None:
            raise RuntimeError(event.error)
        return unit_vector(event.embedding, dimensions)

    def _tokens(self, prompt: Prompt) -> tuple[int, ...]:
        return tuple(self.engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)

    def _truncated(self, prompt: Prompt, params: SamplingParams) -> tuple[int, ...]:
        """Return the tokens of a prompt that ``truncate_prompt_tokens`` keeps."""
        tokens, most = self._tokens(prompt), params.truncate_prompt_tokens
        if most is None:
            return tokens
        if most == -1:
            most = max(self.engine.model.max_model_len - params.max_tokens, 1)
        return tuple(self.engine.tokenizer.last_tokens(tokens, most, special=isinstance(prompt, str)))

    def _default_params(self, num_prompt: int) -> SamplingParams:
        """Return the parameters of a prompt of this many tokens without any: the context bounds the default length."""
        params = self.get_default_sampling_params()
        room = max(1, self.engine.model.max_model_len - num_prompt)
        return replace(params, max_tokens=min(params.max_tokens, room))

    async def _complete(self, prompt: Prompt, params: SamplingParams | None) -> Completion:
        texts: list[str] = []
        tokens: list[int] = []
        reason = FinishReason.STOP  # stays if a stop string ends the answer
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
        """Yield each event with the text that became certain with it, up to a stop string."""
        tokenizer = self.engine.tokenizer
        ids = self._truncated(prompt, params or self.get_default_sampling_params())
        params = params or self._default_params(len(ids))
        text = tokenizer.completion_text(
            prompt=ids,
            stop=params.stop,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
        )
        async with aclosing(self.engine.generate(Request(f"llm-{next(self._ids)}", ids, params))) as events:
            async for event in events:
                if event.finish_reason is FinishReason.ERROR:
                    raise RuntimeError(event.error)
                yield text.feed(event.token, event.finish_reason), event
                if text.finish_reason is not None:
                    return


def _checked(conversation: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages for the template. Raises RequestRefusedError for an invalid message, or for none."""
    if not conversation:
        raise RequestRefusedError("messages must have at least one message", "messages")
    return for_template(conversation)


async def _all[T](works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all coroutines; if one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the error that cancelled the others
    return [task.result() for task in tasks]


def _run_to_end[T](work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, even if an event loop is running already (a notebook)."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, work).result()
