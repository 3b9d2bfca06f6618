"""Turn the token events of one choice into text, log-probabilities and a finish reason, in pieces or whole."""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple
from zlib import crc32

from jaxgen.core.request import FinishReason, Latency, Request, TokenEvent, TokenLogprobs
from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.generation.logprobs import Logprobs
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.resume.ticket import answer_differs
from jaxgen.server.tool_calls.deltas import Delta, Reasoning, content_of, merged
from jaxgen.text.detokenizer import NONE_SHOWN
from jaxgen.text.tokenizer import Tokenizer


class ChoiceDelta(NamedTuple):  # once for every token: a frozen dataclass takes twice as long to make
    """The output of a choice since the last ``take``. ``deltas``: content, and reasoning and tool calls found in the
    text."""

    deltas: tuple[Delta, ...]
    logprobs: dict[str, Any] | None
    finish_reason: str | None
    token_ids: tuple[int, ...] = ()
    num_tokens: int = 0
    """Tokens of the choice up to its end."""
    checksum: int = 0
    """Of the ids of these tokens."""
    num_reasoning_tokens: int = 0
    """How many of these tokens are reasoning."""

    @property
    def text(self) -> str:
        return content_of(self.deltas)

    @property
    def only_text(self) -> str | None:
        """The text of a piece with text and token ids alone; else None."""
        if self.finish_reason is not None or self.logprobs is not None or len(self.deltas) != 1:
            return None
        (delta,) = self.deltas
        return delta if isinstance(delta, str) else None


class Choice:
    """One choice: ``feed`` it the request's events until ``finish_reason`` is set; ``take`` its new output at any time.

    The pieces join to the same text and log-probabilities however often one is taken.
    """

    def __init__(
        self,
        index: int,
        prompt: Prompt,
        request: Request,
        tokenizer: Tokenizer,
        params: CompletionParams,
        logprobs: Logprobs,
        reading: AnswerReading | None = None,
        *,
        name: str = "",
        boundaries: Sequence[int] = (),
    ):
        """``name``: from which the ids of calls are made. ``boundaries``: numbers of tokens, ascending. At each of them
        a piece must end, whenever it is taken. Until all have come, only these pieces are output."""
        self.index = index
        self.prompt = prompt
        self.request = request
        self.num_tokens = 0
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()
        """Log-probabilities of the prompt's tokens, with their alternatives; empty unless they were requested."""
        self.cached_tokens = 0
        self.finish_reason: str | None = None
        self.latency: Latency | None = None
        """How long each stage took; None: the engine ran no step for it."""
        self._tokenizer = tokenizer
        self._echo = params.echo
        self._show_logprobs = params.logprobs is not None
        self._num_echoed = params.logprobs or 0
        sampling = params.sampling
        self._text = tokenizer.completion_text(
            prompt=prompt.tokens,
            stop=sampling.stop,
            min_tokens=sampling.min_tokens,
            shown=NONE_SHOWN if reading is None else reading.shown,
            include_stop=sampling.include_stop_str_in_output,
            skip_special=sampling.skip_special_tokens,
            skips=None if reading is None or reading.tools is None else self._in_call,
        )
        self._stops_at_space = any(text.isspace() for text in sampling.stop)
        self._parser = None if reading is None else reading.parser(name)
        self._hides_reasoning = reading is not None and not reading.include_reasoning
        self.num_reasoning_tokens = 0
        """Generated tokens of the reasoning, with that which ends it."""
        self._begun = False
        self._finish_sent = False
        self._deltas: list[Delta] = []
        self._token_ids: list[int] = []
        self._boundaries = deque(boundaries)
        self._ended_pieces: deque[ChoiceDelta] = deque()
        self._checksum = 0
        self._length = 0
        self._prompt_length = 0
        self._logprobs = logprobs
        self._logprob_sum = 0.0

    @property
    def mean_logprob(self) -> float:
        """Mean natural log-probability of the generated tokens; 0 when there are none."""
        return self._logprob_sum / self.num_tokens if self.num_tokens else 0.0

    @property
    def stop_string(self) -> str | None:
        """The caller's stop string that ended it; None: something else did."""
        return self._text.stop_string

    @property
    def starts(self) -> Sequence[tuple[int, int]]:
        """Where its content continues after something else; see MessageParser."""
        return () if self._parser is None else self._parser.starts

    @property
    def has_updates(self) -> bool:
        """Whether ``take`` would return something new."""
        if self._ended_pieces:
            return True
        if self._boundaries:
            return False
        if self.finish_reason is not None:
            return not self._finish_sent
        return bool(self._deltas) or self._logprobs.begins_within(self._length)

    @property
    def has_pieces(self) -> bool:
        """Whether ``take`` would return a piece that ended where it must."""
        return bool(self._ended_pieces)

    def feed(self, event: TokenEvent) -> None:
        """Add an event's output. Raises ApiError when the engine failed on the request or aborted it."""
        if event.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise given_up(event)
        if not self._begun:
            self._begin(event)
        if event.latency is not None:
            self.latency = event.latency
        self._add(event)

    def held(self, tokens: Sequence[int]) -> int:
        """Return of how many of the tokens the log-probabilities would wait for their places, if these were its first.

        It takes the tokens as its own.
        """
        if not self._show_logprobs:
            return 0
        for token in tokens:
            self._count_token(token, TokenLogprobs(token, 0.0, (), 1))
            self._read_text(TokenEvent(self.request.request_id, token))
            if self._text.finish_reason is not None:
                break
        self._take()
        return len(self._logprobs)

    def _begin(self, event: TokenEvent) -> None:
        """Take what only the first event has, and the tokens that have none because they were known before."""
        self._begun = True
        self.cached_tokens = event.cached_tokens or 0
        self.prompt_logprobs = event.prompt_logprobs or ()
        if self._echo:
            self._echo_prompt(event)
        for token in self.request.answer:
            self._add(TokenEvent(event.request_id, token))

    def _add(self, event: TokenEvent) -> None:
        if event.token is not None:
            self._count_token(event.token, event.logprobs)
        self._read_text(event)
        if self._parser is not None and self._parser.done:
            self._finish("stop")
        elif self._text.finish_reason is not None:
            self._finish(self._text.finish_reason.value)
        if self._boundaries:
            self._end_piece()

    def take(self) -> ChoiceDelta:
        return self._ended_pieces.popleft() if self._ended_pieces else self._take()

    def take_whole(self) -> ChoiceDelta:
        """Return all output of a choice that has ended, its log-probabilities as lists that are made later."""
        return self._take(later=True)

    def _end_piece(self) -> None:
        """End a piece if it must end here. Raises ApiError 409 if it must have ended before, or can no more."""
        if self.num_tokens == self._boundaries[0]:
            self._boundaries.popleft()
            self._ended_pieces.append(self._take())
        if self._boundaries and (self.num_tokens > self._boundaries[0] or self.finish_reason is not None):
            raise answer_differs()

    def _take(self, *, later: bool = False) -> ChoiceDelta:
        deltas = merged(self._deltas)
        self._deltas.clear()
        ended = self.finish_reason is not None
        self._finish_sent = ended
        take = self._logprobs.take_later if later else self._logprobs.take
        logprobs = take(self._length, ended=ended) if self._show_logprobs else None
        token_ids = tuple(self._token_ids)
        self._token_ids.clear()
        return ChoiceDelta(
            deltas,
            logprobs,
            self.finish_reason,
            token_ids,
            self.num_tokens,
            self._checksum,
            self.num_reasoning_tokens,
        )

    def _finish(self, reason: str) -> None:
        if self._parser is not None:
            self._add_deltas(self._parser.finish(cut=reason == FinishReason.LENGTH))
            if self._parser.called and reason == "stop":
                reason = "tool_calls"
        self.finish_reason = reason

    def _count_token(self, token: int, logprobs: TokenLogprobs | None) -> None:
        self.num_tokens += 1  # the EOS or stop token too, which is not part of the text
        self._token_ids.append(token)
        self._checksum = crc32(token.to_bytes(4, "little"), self._checksum)
        if logprobs is not None:
            self._logprob_sum += logprobs.logprob
            if self._show_logprobs:
                self._logprobs.append(token, logprobs, self._prompt_length + self._text.offset)

    def _read_text(self, event: TokenEvent) -> None:
        parser = self._parser
        reasons = parser is not None and parser.reasons
        for text in self._text.pieces(event.token, event.finish_reason):
            self._add_text(text)
        if parser is not None and event.token is not None and (reasons or parser.reasons):
            self.num_reasoning_tokens += 1

    def _in_call(self) -> bool:
        """Return whether the text so far ends within calls, in which no stop string is searched; nor between them, if
        one is white space as that is."""
        return self._parser is not None and self._parser.in_call(after=self._stops_at_space)

    def _add_text(self, text: str) -> None:
        if text:
            self._add_deltas([text] if self._parser is None else self._parser.push(text))
            self._length += len(text)

    def _add_deltas(self, deltas: Sequence[Delta]) -> None:
        if self._hides_reasoning:
            deltas = [delta for delta in deltas if not isinstance(delta, Reasoning)]
        self._deltas += deltas

    def _echo_prompt(self, event: TokenEvent) -> None:
        prompt = self.prompt
        self._add_text(prompt.text)
        self._prompt_length = len(prompt.text)
        if self._show_logprobs:
            known = event.prompt_logprobs or (None,) * len(prompt.tokens)
            for token, logprobs, offset in zip(prompt.tokens, known, prompt.offsets, strict=True):
                echoed = None if logprobs is None else replace(logprobs, top=logprobs.top[: self._num_echoed])
                self._logprobs.append(token, echoed, offset)


def latency_json(latency: Latency | None, cached_tokens: int) -> dict[str, Any]:
    """Return the field ``latency`` of an answer: how long each stage took; null where no step ran for the request."""
    return {"latency": None if latency is None else asdict(latency) | {"cached_tokens": cached_tokens}}


def given_up(event: TokenEvent) -> ApiError:
    """Return the error for the caller of a request that ended with ABORT or ERROR."""
    if event.finish_reason is FinishReason.ABORT:
        return ApiError(503, "The server ended this request early.", code="aborted")
    if event.param is not None:  # a grammar that could not be followed: the message is made for callers
        return bad_request(f"{(event.error or event.param).splitlines()[0]}.", event.param)
    return ApiError(500, "The engine failed on this request.")
