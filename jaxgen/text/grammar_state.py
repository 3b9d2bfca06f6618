"""The states of requests in their grammars, advanced token by token. Host only, no jax.

llguidance parses: a grammar and the tokens so far give the set of allowed next tokens. It is imported only for a
grammar, so machines that only measure steps and kernels do not need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

PARALLEL = 64
"""Fewest states that are advanced by several threads. One takes 10 to 30 microseconds; threads that must first find
a core during a step on a CPU take milliseconds."""

BUILDING_SECONDS = 0.001
"""Seconds of a token that builds many states of a grammar's lexer."""

BYTES_BUILT = 2e8
"""About how many bytes of such states a second of a processor builds: 2.8 MB in 15 ms."""

_LONGEST_MESSAGE = 300
_HOW_TO_WRITE = r"write texts in double quotes, and a character as itself or as \u00e9"


@cache
def _executor() -> "LLExecutor":
    from llguidance import LLExecutor

    return LLExecutor()


@dataclass(slots=True, eq=False)
class Cost:
    """What a grammar costs: the processor's seconds of a token, as measured for the last ones of all its requests, and
    about how many bytes it takes."""

    seconds: float = 0.0
    num_bytes: float = 0.0

    def note(self, seconds: float) -> None:
        """Note what a token took. It rises at once and falls slowly: one state of a grammar may take much longer.

        What takes long builds states of the lexer, which all requests of the grammar share from then on.
        """
        self.seconds = max(seconds, self.seconds + (seconds - self.seconds) / 4)
        if seconds > BUILDING_SECONDS:
            self.num_bytes += seconds * BYTES_BUILT


class GrammarState:
    """The state of one request in its grammar."""

    def __init__(self, matcher: "LLMatcher", first_mask: np.ndarray, cost: Cost) -> None:
        """``cost``: shared by all states of the same grammar."""
        self.matcher = matcher
        self.error: str | None = None
        """Why the grammar could not be advanced; None: it could."""
        self.mask = first_mask
        """Allowed next tokens, as in a Constraint."""
        self.cost = cost
        self._path = b""

    @property
    def place(self) -> tuple[object, ...]:
        """The grammar and a digest of the tokens so far: states with an equal place are equal."""
        return self.cost, self._path

    def take(self, token: int) -> None:
        """Count a token by which the matcher has been advanced, whether it may follow or not."""
        self._path = blake2b(self._path + token.to_bytes(4, "big"), digest_size=16).digest()


def advance(taken: Sequence[tuple[GrammarState, int]]) -> None:
    """Advance each of several states by a token, many in parallel, and set ``error`` where that fails.

    The mask of states that become equal is computed once.
    """
    if len(taken) >= PARALLEL:
        _advance_in_parallel(taken)
        return
    states: dict[tuple[object, ...], GrammarState] = {}
    for state, token in taken:
        began = thread_time()
        followed = state.matcher.consume_token(token)
        state.take(token)
        equal = states.get(state.place)
        if equal is not None and followed:
            state.mask, state.error = equal.mask, equal.error
            continue
        if followed:
            state.mask = next_mask(state.matcher, len(state.mask))
        _note_error(state)
        states[state.place] = state
        state.cost.note(thread_time() - began)


def _advance_in_parallel(taken: Sequence[tuple[GrammarState, int]]) -> None:
    from llguidance.numpy import fill_next_token_bitmask_par

    began = perf_counter()
    followed = _executor().consume_token_par([(state.matcher, token) for state, token in taken])
    states: dict[tuple[object, ...], GrammarState] = {}
    for (state, token), ok in zip(taken, followed, strict=True):
        state.take(token)
        if ok:
            states.setdefault(state.place, state)
    masks = np.zeros((len(states), len(taken[0][0].mask)), np.int32)
    if states:
        matchers = [(state.matcher, index) for index, state in enumerate(states.values())]
        fill_next_token_bitmask_par(_executor(), matchers, masks)
    for state, mask in zip(states.values(), masks, strict=True):
        state.mask = mask
        _note_error(state)
    for (state, _), ok in zip(taken, followed, strict=True):
        if ok:
            state.mask, state.error = states[state.place].mask, states[state.place].error
        else:
            _note_error(state)
    mean = (perf_counter() - began) / len(taken)
    for cost in {state.cost for state, _ in taken}:
        cost.note(mean)


def next_mask(matcher: "LLMatcher", words: int) -> np.ndarray:
    """Return the tokens that a matcher allows next, in some words."""
    from llguidance.numpy import fill_next_token_bitmask

    masks = np.zeros((1, words), np.int32)
    fill_next_token_bitmask(matcher, masks)
    mask: np.ndarray = masks[0]
    return mask


def _note_error(state: GrammarState) -> None:
    if state.matcher.is_error():
        state.error = first_line(state.matcher.get_error())


def first_line(message: str) -> str:
    """Return the first line of llguidance's message, without the copy of the grammar that may follow."""
    line = (message.strip().splitlines() or ["it cannot be used"])[0][:_LONGEST_MESSAGE]
    return f"{line}: {_HOW_TO_WRITE}" if line.endswith("lexer error") else line
