"""Build the response to a request from its choices: one JSON object, or server-sent events."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from starlette.types import Send

from jaxgen.client import EngineClient
from jaxgen.core.sampling_params import choice_seed
from jaxgen.server.api.sse import EventWriter, start_of_events
from jaxgen.server.errors import ApiError, as_api_error
from jaxgen.server.generation.choice import Choice, ChoiceDelta, latency_json
from jaxgen.server.generation.generation import Generation
from jaxgen.server.generation.logprobs import LogprobQuota, Logprobs
from jaxgen.server.generation.usage import Usage
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.engine_requests import completion_request
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.resume.event_ids import EventIds, LastEvent, Position, ReceivedPart
from jaxgen.server.resume.resumption import Binding, digest_of
from jaxgen.server.resume.ticket import AnswerIdentity, malformed

HEAD_SECONDS = 5.0
"""Time in which a stream may still get an error with a status of its own; then its head is sent, before any event."""


class ResponseBuilder(ABC):
    """The choices of one request, and the response made from them."""

    _counts_events = False
    """Whether events have numbers in addition to their ids."""
    _usage_sent = False
    _next_number = 0
    """Of the next event, where they have numbers."""

    def __init__(
        self,
        engine: EngineClient,
        prompts: Sequence[Prompt],
        params: CompletionParams,
        context: RequestContext,
        identity: AnswerIdentity,
        *,
        prefix: str,
        logprobs: type[Logprobs],
        reading: AnswerReading | None = None,
    ) -> None:
        """Raises ApiError 400 for more log-probabilities of prompts than an answer may have.

        ``context``: of the caller's request. ``prefix``: of the response's id. ``logprobs``: of the list of
        a choice's log-probabilities. ``reading``: how answers are read; None: as
        text alone."""
        given = params.sampling.seed
        self._identity = identity if given is None else identity._replace(seed=given)
        self._id = f"{prefix}-{identity.name.hex()}"
        self._created = identity.created
        self._model = engine.model.name
        self._fingerprint = f"fp_{engine.digest}"
        self._vocab_size = engine.model.vocab_size
        self._max_model_len = engine.model.max_model_len
        self._prompts = prompts
        self.params = params
        self._request_context = context
        self._tokenizer = engine.tokenizer
        self._reading = reading
        self._sent: set[int] = set()
        self._around: dict[int, tuple[bytes, bytes]] = {}
        """By choice: the bytes before and after the text of an event that has only text."""
        self._error: str | None = None
        self._logprobs = logprobs
        self._quota = LogprobQuota(params.most_logprobs)
        self._quota.check(self._prompt_entries())
        self.choices = self._new_choices()
        self._ids = EventIds(None, [Position() for _ in self.choices])

    def number_events(self, binding: Binding, last: LastEvent | None, *, shown: bool) -> None:
        """Prepare a stream that has ids, or resumes after one.

        ``last``: the last event that the caller has; None: the stream begins. ``shown``: whether the events have ids.
        Raises ApiError if ``last`` is not an event of this stream.
        """
        ticket = binding.ticket(self._identity, digest_of(self.params, self._prompts, self._reading))
        positions: Sequence[Position] = [Position() for _ in self.choices]
        if last is not None:
            last.ticket.check(ticket)
            if len(last.positions) != len(positions) or (last.number is not None) != self._counts_events:
                raise malformed()
            positions, self._usage_sent = last.positions, last.usage
            self._next_number = 0 if last.number is None else last.number + 1
            given = binding.tokens(len(positions), self._vocab_size)
            self.choices = self._new_choices([*map(self._already, self.choices, positions, given)])
        key = ticket.positions_key(binding.secret)
        self._ids = EventIds(ticket.encode(binding.secret) if shown else None, positions, key)

    def _already(self, choice: Choice, position: Position, tokens: Sequence[int]) -> ReceivedPart:
        """Return what the caller has of a choice, with the tokens that need not be computed one by one.

        These are not the last ones: the answer is compared there, and log-probabilities may not have been told.
        """
        num_sent = 0 if position.complete is None else min(position.complete.tokens, choice.request.params.max_tokens)
        known = tokens[: max(0, num_sent - 1)]
        return ReceivedPart(position, known[: len(known) - choice.held(known)])

    @abstractmethod
    def full_response(self) -> dict[str, Any]:
        """Return the response as one object, when all choices have ended."""

    @abstractmethod
    def _update_events(self, choice: Choice) -> list[bytes]:
        """Return events with the choice's new output."""

    @abstractmethod
    def _failed(self, error: ApiError) -> list[bytes]:
        """Return the last events of a stream that fails."""

    @abstractmethod
    def _ended(self) -> list[bytes]:
        """Return the last events of a stream that succeeds."""

    async def stream(
        self, generation: Generation[Choice], send: Send, send_more: Send, *, ping_seconds: float = 0.0
    ) -> None:
        """Stream the response as server-sent events.

        Events that are ready together go out in one write; no output is taken while a write waits. ``send`` takes the
        first message, ``send_more`` the others. ``ping_seconds``: after so long without an event a ping is sent; 0:
        never, and the first message waits for the first event. Raises ApiError before anything is sent.
        """
        # Until its head is sent the response can still be an error with its own status.
        first = await self._first_events(generation, min(HEAD_SECONDS, ping_seconds))
        await send(start_of_events())
        writer = EventWriter(send_more, ping=self._ping, ping_seconds=ping_seconds)
        # Output of several choices goes out together; only a single choice is written without waking this task.
        drain = partial(self._write_at_once, self.choices[0], writer) if len(self.choices) == 1 else None
        goes_on, events = (True, [self._ping()]) if first is None else (bool(first), first)
        try:
            while goes_on:
                if events:
                    await writer.write(events)
                try:
                    updates = await generation.next_updates(drain)
                    await writer.until_free()  # take the output only then
                    goes_on, events = bool(updates), self._events(updates)
                except Exception as error:
                    refusal = as_api_error(error)
                    self._error = refusal.code or refusal.kind
                    await writer.write(self._failed(refusal), last=True)
                    return
            await writer.write(self._ended(), last=True)
        finally:
            writer.close()

    def _ping(self) -> bytes:
        """Return what ends a silence: a comment, unless an API has events for that."""
        return self._ids.comment

    async def _first_events(self, generation: Generation[Choice], seconds: float) -> list[bytes] | None:
        """Return the first events that were not told before, none where all were; None: none has come in ``seconds``
        (0: wait for ever)."""
        try:
            async with asyncio.timeout(seconds or None) as timeout:
                while updates := await generation.next_updates():
                    if events := self._events(updates):
                        return events
        except TimeoutError:
            if not timeout.expired():
                raise
            return None
        return []

    def _write_at_once(self, choice: Choice, writer: EventWriter) -> bool:
        """Write the choice's new output. Return False where the caller must: at its end, or while a write waits."""
        if choice.finish_reason is not None or choice.has_pieces or not writer.is_free:
            return False
        if choice.has_updates and (events := self._update_events(choice)):  # none, where all of it was told before
            writer.write_at_once(events)
        return True

    def _events(self, updates: Iterable[Choice]) -> list[bytes]:
        return [event for choice in updates for event in self._update_events(choice)]

    def _new_choices(self, received: Sequence[ReceivedPart] | None = None) -> list[Choice]:
        """Return the choices. ``received``: what the caller has of each; None: nothing, and no id."""
        indices = range(len(self._prompts) * self.params.best_of)
        return [self._choice(index, None if received is None else received[index]) for index in indices]

    def _choice(self, index: int, received: ReceivedPart | None) -> Choice:
        i, j = divmod(index, self.params.best_of)
        prompt, name = self._prompts[i], f"{self._id}-{i}-{j}"
        params = self.params.within(self._max_model_len - len(prompt.tokens))
        # Without a seed of the caller's no two choices are alike, with one prompts are answered as if they were alone.
        seed = choice_seed(self._identity.seed, index if params.sampling.seed is None else j)
        # The request of which this one is the rest may still run here.
        request_id = name if received is None else f"{name}-{uuid4().hex[:8]}"
        answer = () if received is None else received.tokens
        request = completion_request(request_id, prompt, params, seed, answer, self._request_context)
        return Choice(
            index,
            prompt,
            request,
            self._tokenizer,
            params,
            self._logprobs(self._tokenizer, self._quota, as_ids=params.tokens_as_ids),
            self._reading,
            name=name,
            boundaries=() if received is None else received.position.boundaries,
        )

    @property
    def failed(self) -> bool:
        """Whether an error ended the stream."""
        return self._error is not None

    def summary(self) -> dict[str, Any]:
        """Return the fields for the log, without any text."""
        usage = self._usage()
        return {
            "model": self._model,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "choices": len(self.choices),
            "finish_reasons": sorted({choice.finish_reason or "none" for choice in self.choices}),
        } | ({} if self._error is None else {"error": self._error})

    def prompt_texts(self) -> list[str]:
        """Return the decoded text of each prompt."""
        return [self._tokenizer.decode(prompt.tokens) for prompt in self._prompts]

    def _end_extras(self, choice: Choice) -> dict[str, Any]:
        """Return the requested extra fields of a choice that has ended."""
        return latency_json(choice.latency, choice.cached_tokens) if self.params.return_latency else {}

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer has log-probabilities, of which there may be many."""
        return self.params.logprobs is not None or self.params.prompt_logprobs is not None

    def _prompt_entries(self) -> int:
        """Return how many log-probabilities of prompts the answer has."""
        params = self.params
        shown = [params.prompt_logprobs, params.logprobs if params.echo else None]
        each = sum(1 + alternatives for alternatives in shown if alternatives is not None)
        return each * params.best_of * sum(len(prompt.tokens) for prompt in self._prompts)

    def _usage(self) -> Usage:
        return Usage(
            sum(len(prompt.tokens) for prompt in self._prompts),
            sum(choice.num_tokens for choice in self.choices),
            sum(choice.cached_tokens for choice in self.choices[:: self.params.best_of]),
            self._reasoning_tokens(self.choices),
        )

    def _reasoning_tokens(self, choices: Iterable[Choice | ChoiceDelta]) -> int | None:
        if self._reading is None or self._reading.form.reasoning is None:
            return None
        return sum(choice.num_reasoning_tokens for choice in choices)
