"""Turn prompts into what the engine takes: token ids within the vocabulary and the context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from jaxgen.client import EngineClient
from jaxgen.core.limits import check_context_length, check_token_ids
from jaxgen.core.model_info import ModelInfo
from jaxgen.server.errors import bad_request, refusals
from jaxgen.server.limits import Limits, Queue
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.text_queue import TextQueue
from jaxgen.server.schema.base import PROMPT_MESSAGE, CompletionRequest
from jaxgen.server.schema.base import Prompt as PromptField
from jaxgen.text.tokenizer import Tokenizer

_Source = str | list[int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a prompt. ``text``: the prompt to echo, as the caller wrote it or as its token ids decode.

    ``offsets``: where each token begins in ``text``, in characters. Both are empty unless the request has echo.
    """

    tokens: tuple[int, ...]
    text: str = ""
    offsets: tuple[int, ...] = ()


class PromptReader:
    """Turns the prompt field, or a rendered conversation, into Prompts.

    Long prompts are read in a few threads, so that they take up neither the event loop nor all cores; what waits for
    these is bounded (``TextQueue``). A text that is too long by its characters alone is not read.
    """

    def __init__(self, engine: EngineClient, limits: Limits, queue: Queue) -> None:
        self._engine = engine
        self._limits = limits
        self._inline_chars = queue.inline_encode_chars
        self._queue = TextQueue(queue)

    def register(self, registry: CollectorRegistry) -> None:
        """Add a metric of what waits to a registry."""
        text = "Characters of long texts that wait for the tokenizer, or are in it."
        gauge = Gauge("jaxgen_num_prompt_characters_waiting", text, ["model_name"], registry=registry)
        gauge.labels(self._engine.model.name).set_function(lambda: self._queue.num_chars)

    async def read(self, body: CompletionRequest, params: CompletionParams) -> list[Prompt]:
        """Read the prompts of a request for completions.

        Raises ApiError 400 for a prompt that is missing, empty, out of the vocabulary or too long, and for more choices
        than may be computed at once.
        """
        sources = _sources(body.prompt, "prompt")
        choices = len(sources) * params.best_of
        if choices > self._limits.max_choices:
            raise bad_request(
                f"prompts times best_of (or n) is {choices}; this server computes {self._limits.max_choices} at once.",
                "best_of" if params.best_of > params.n else "n",
            )
        return await self._read(sources, "prompt", params.least_room, echo=params.echo, keep=params.keep)

    async def read_all(self, value: PromptField | None, field: str, keep: int | None = None) -> list[Prompt]:
        """Read prompts of a field for which no tokens are generated. Raises ApiError 400 as ``read`` does."""
        return await self._read(_sources(value, field), field, max_tokens=0, echo=False, keep=keep)

    async def read_text(
        self,
        write: Callable[[], str],
        length: int,
        *,
        special: bool,
        field: str,
        max_tokens: int,
        keep: int | None = None,
    ) -> Prompt:
        """Return the prompt of the text that ``write`` returns, of about ``length`` characters.

        ``special``: the tokenizer adds its special tokens. ``field``: the source of the text, for errors. ``keep``: how
        many of its last tokens the prompt has; None: all.
        Raises ApiError 400 for a text that is too long with ``max_tokens``, or longer than any body, and what ``write``
        raises.
        """
        tokenizer, model, longest = self._engine.tokenizer, self._engine.model, self._limits.max_body_bytes

        def read() -> Prompt:
            text = write()
            if len(text) > longest:  # as a chat template may make it; the tokenizer would take minutes
                raise bad_request(
                    f"{field}: the rendered prompt has {len(text)} characters, and the limit is {longest}.", field
                )
            if keep is None:
                _check_length(text, tokenizer, model, field)
            tokens: Sequence[int] = tokenizer.encode(text, special=special)
            if keep is not None:
                tokens = tokenizer.last_tokens(tokens, keep, special=special)
            _check(tokens, max_tokens, model, field)
            return Prompt(tuple(tokens))

        return await self.work(read, length)

    async def work[Result](self, read: Callable[[], Result], length: int) -> Result:
        """Return what ``read`` returns; run it in a thread if it reads many characters (``length``).

        Raises ApiError 429 where too much waits for the threads.
        """
        if length <= self._inline_chars:
            return read()
        with self._queue.place(length):
            return await self._queue.run(read, length)

    async def _read(
        self, sources: Sequence[_Source], field: str, max_tokens: int, *, echo: bool, keep: int | None
    ) -> list[Prompt]:
        tokenizer, model = self._engine.tokenizer, self._engine.model
        read = partial(_read_prompt, tokenizer=tokenizer, model=model, max_tokens=max_tokens, echo=echo, keep=keep)
        # Errors say which of several it is.
        named = [(source, field if len(sources) == 1 else f"{field}.{i}") for i, source in enumerate(sources)]
        for source, name in named:
            if isinstance(source, str) and keep is None:
                _check_length(source, tokenizer, model, name)
        length = sum(map(len, sources))
        if length <= self._inline_chars:
            return [read(source, field=name) for source, name in named]
        with self._queue.place(length):
            # One after another: a request holds one thread at a time, and none after its caller disconnects.
            return [await self._queue.run(partial(read, source, field=name), len(source)) for source, name in named]


def _sources(prompt: PromptField | None, field: str) -> list[_Source]:
    if prompt is None:
        raise bad_request(f"{field} is missing: {PROMPT_MESSAGE.format(field)}.", field)
    if isinstance(prompt, str):
        return [prompt]
    tokens = [item for item in prompt if isinstance(item, int)]
    return [tokens] if tokens else [item for item in prompt if not isinstance(item, int)]


def _read_prompt(
    source: _Source,
    *,
    tokenizer: Tokenizer,
    model: ModelInfo,
    field: str,
    max_tokens: int,
    echo: bool,
    keep: int | None,
) -> Prompt:
    if not source:
        raise bad_request(f"{field} must not be empty. To start without a prompt, send the id of the BOS token.", field)
    whole: Sequence[int] = tokenizer.encode(source) if isinstance(source, str) else source
    tokens = whole if keep is None else tokenizer.last_tokens(whole, keep, special=isinstance(source, str))
    _check(tokens, max_tokens, model, field)
    if not echo:
        return Prompt(tuple(tokens))
    text, offsets = _echo(tokenizer, tokens)
    if isinstance(source, str) and tokens is whole:
        # If the tokenizer normalises text, offsets count characters of the normalised text, which may be longer.
        text, offsets = source, [min(offset, len(source)) for offset in offsets]
    return Prompt(tuple(tokens), text, tuple(offsets))


def _check_length(text: str, tokenizer: Tokenizer, model: ModelInfo, field: str) -> None:
    """Raise ApiError 400 for a text that has more tokens than the context, however it is tokenised."""
    with refusals(field):
        check_context_length(tokenizer.least_tokens(text), 0, model.max_model_len, at_least=True)


def _check(tokens: Sequence[int], max_tokens: int, model: ModelInfo, field: str) -> None:
    if not tokens:
        raise bad_request(f"{field} has no tokens: send a longer text.", field)
    with refusals(field):
        check_token_ids(field, tokens, model.vocab_size)
        check_context_length(len(tokens), max_tokens, model.max_model_len)


def _echo(tokenizer: Tokenizer, tokens: Sequence[int]) -> tuple[str, list[int]]:
    """Return the text of ``tokens``, without an incomplete character at its end, and where each token begins in it."""
    completion = tokenizer.completion_text()
    offsets, parts = [], []
    for token in tokens:
        offsets.append(completion.offset)
        parts.append(completion.feed(token))
    return "".join(parts), offsets
