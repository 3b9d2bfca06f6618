"""Constrain a request's next token by its grammar, its allowed_token_ids and its bad_words together. Host only."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.limits import check_token_ids, require
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.processes.helper import Helper
from jaxgen.processes.helpers import for_grammars
from jaxgen.text.grammar import Grammars
from jaxgen.text.grammar_state import GrammarState, advance
from jaxgen.text.tokenizer import Tokenizer


class Constraint:
    """The tokens that one request may have next."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab_size: int,
        grammar: GrammarState | None,
        words: Iterable[Sequence[int]],
        ending: Iterable[int],
    ) -> None:
        """``words``: the bad words as tokens. ``ending``: tokens that are not allowed among the first ``min_tokens``,
        unless only these are."""
        self.grammar = grammar
        self.error: str | None = None
        """Why the request cannot go on; None: it can."""
        self.behind = False
        """Whether its last token has not been taken yet, so that ``mask`` is what was allowed before that."""
        self._params = params
        self._unfinished = _Unfinished(words)
        allowed = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
        self._ever = _bits(allowed, vocab_size) & ~_bits(self._unfinished.completing_at_once, vocab_size)
        self._ending = _bits(ending, vocab_size)
        self._vocab_size = vocab_size
        self._num_tokens = 0
        self.changes = grammar is not None or self._unfinished.any or params.min_tokens > 0
        """Whether the allowed tokens depend on the tokens so far."""
        self.mask = self._allowed()
        """Allowed next tokens: bit i of word w is the bit of token 32 * w + i. int32 [ceil(vocabulary / 32)]."""

    @property
    def only_token(self) -> int | None:
        """The allowed next token, if there is exactly one that depends on the tokens so far; else None."""
        if not self.changes or np.count_nonzero(self.mask) != 1:
            return None
        word = int(np.flatnonzero(self.mask)[0])
        bits = int(self.mask[word]) & 0xFFFFFFFF
        return None if bits & (bits - 1) else 32 * word + bits.bit_length() - 1

    @property
    def seconds(self) -> float:
        """About how long the host takes for the next token."""
        return 0.0 if self.grammar is None else self.grammar.cost.seconds

    @property
    def place(self) -> tuple[object, ...]:
        """The place in the grammar: requests at the same place go on to equal ones by equal tokens."""
        return (self,) if self.grammar is None else self.grammar.place

    @property
    def source(self) -> str:
        """The field that an error is about."""
        params = self._params
        if params.grammar is not None and (self.grammar is None or self.grammar.error is not None):
            return params.grammar.source
        return "bad_words" if params.bad_words else "allowed_token_ids"

    def take(self, token: int) -> None:
        """Count one more token, by which the grammar was advanced already."""
        self._num_tokens += 1
        self._unfinished.take(token)
        if self.grammar is not None and self.grammar.error is not None:
            self.error = self.grammar.error
        elif self.changes:
            self.mask = self._allowed()

    def _allowed(self) -> np.ndarray:
        mask = self._ever if self.grammar is None else self._ever & self.grammar.mask
        if completing := self._unfinished.completing():
            mask = mask & ~_bits(completing, self._vocab_size)
        if not mask.any():
            self.error = "no token is left that every field of the request allows"
        if self._num_tokens >= self._params.min_tokens:
            return mask
        going_on = mask & ~self._ending
        return going_on if going_on.any() else mask


class _Beginning:
    """The beginning of bad words, as tokens."""

    __slots__ = ("completing", "longer")

    def __init__(self) -> None:
        self.longer: dict[int, _Beginning] = {}
        """The beginnings that are longer by a token."""
        self.completing: list[int] = []
        """Tokens of which each would complete a word."""


class _Unfinished:
    """Bad words as tokens, and the beginnings of some with which an answer ends."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._nothing = _Beginning()
        for *beginning, last in words:
            at = self._nothing
            for token in beginning:
                at = at.longer.setdefault(token, _Beginning())
            at.completing.append(last)
        self.completing_at_once = self._nothing.completing
        """Tokens that are a word each."""
        self._begun: list[_Beginning] = []

    @property
    def any(self) -> bool:
        """Whether a word has several tokens."""
        return bool(self._nothing.longer)

    def take(self, token: int) -> None:
        begun = (self._nothing, *self._begun)
        self._begun = [beginning.longer[token] for beginning in begun if token in beginning.longer]

    def completing(self) -> list[int]:
        """Return the tokens that would complete a word of several."""
        return [token for beginning in self._begun for token in beginning.completing]


def follow(taken: Sequence[tuple[Constraint, int]]) -> None:
    """Advance each of several constraints by a token, their grammars together; set ``error`` where that fails."""
    advance([(constraint.grammar, token) for constraint, token in taken if constraint.grammar is not None])
    for constraint, token in taken:
        constraint.take(token)


class Constraints:
    """Makes the constraints of requests, for one tokenizer, in threads and processes aside."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """``vocab_size``: that of the model, which may be padded beyond the tokenizer's."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._grammars = Grammars(tokenizer, vocab_size, eos_token_ids)

    def start(self, params: SamplingParams, answer: Sequence[int] = (), caller: str = "") -> "Future[Constraint]":
        """Return a future of the constraint of a request that has one, before the first token after ``answer``.

        Its result raises RequestRefusedError, which names the field, for a grammar that is invalid or costs too much,
        and for fields that together allow nothing, or not the ``answer``. Callers take turns. Raises as
        ``Helpers.submit``.
        """
        length = 0 if params.grammar is None else len(params.grammar.text)
        cheap = params.grammar is None or self._grammars.has_cached(params.grammar)
        return for_grammars().submit(caller, lambda helper: self._start(params, answer, helper), length, cheap=cheap)

    def prepare(self) -> "Future[None]":
        """Make what the first constraint with a grammar would wait for. Constraints asked for meanwhile wait for it."""
        return for_grammars().prepare(self._grammars.prepare)

    def _start(self, params: SamplingParams, answer: Sequence[int], helper: Helper) -> Constraint:
        allowed = params.allowed_token_ids or ()
        check_token_ids("allowed_token_ids", allowed, self._vocab_size)
        grammar = None if params.grammar is None else self._grammars.start(params.grammar, helper)
        require(
            grammar is None or not allowed or not self._eos_token_ids.isdisjoint(allowed),
            "allowed_token_ids",
            f"must have an end-of-sequence token ({min(self._eos_token_ids, default=None)}), since a grammar ends with "
            "one",
        )
        constraint = Constraint(
            params,
            vocab_size=self._vocab_size,
            grammar=grammar,
            words=self._spelled(params.bad_words),
            ending=(frozenset() if params.ignore_eos else self._eos_token_ids) | frozenset(params.stop_token_ids),
        )
        for token in answer:
            if constraint.error is None:
                follow([(constraint, token)])
        if constraint.error is not None:
            raise RequestRefusedError(f"{constraint.source}: {constraint.error}", constraint.source)
        return constraint

    def _spelled(self, words: Iterable[str]) -> Iterator[tuple[int, ...]]:
        """Yield each word's tokens at the beginning of a text, and those after a space."""
        for word in words:
            bare = word.lstrip() or word
            yield from {tuple(self._tokenizer.encode(text, special=False)) for text in (bare, f" {bare}")} - {()}


def _bits(tokens: Iterable[int], vocab_size: int) -> np.ndarray:
    """Return the words of a mask in which the bits of ``tokens`` are set."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
