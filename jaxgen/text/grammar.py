"""Grammars that a request's text must follow, advanced token by token. Host only, no jax.

llguidance parses: a grammar and the tokens so far give the set of allowed next tokens. It is imported only for a
grammar, so machines that only measure steps and kernels do not need it.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sampling_params import Grammar
from jaxgen.processes.helper import Helper, Target
from jaxgen.text.gbnf import gbnf_to_lark

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

    from jaxgen.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_KEPT = 32
"""Compiled grammars kept for later requests with the same grammar."""

MAX_LENGTH = 2**17
"""Longest grammar, in characters."""

PARALLEL = 64
"""Fewest states that are advanced by several threads. One takes 10 to 30 microseconds; threads that must first find
a core during a step on a CPU take milliseconds."""

COMPILE_SECONDS = 10
"""Longest time in which a helper compiles a grammar, once it has begun."""

_LEAST = 'start: "a"'
_MESSAGE_LENGTH = 300
_LARK = re.compile(r"(?m)^[^\S\n]*(%llguidance\b|start\s*:)")
"""What is found in Lark; a grammar without it is GBNF. llguidance's own pattern looks past line breaks, in a time
quadratic in their number."""


@cache
def _executor() -> "LLExecutor":
    from llguidance import LLExecutor

    return LLExecutor()


class GrammarState:
    """The state of one request in its grammar."""

    def __init__(self, matcher: "LLMatcher", first_mask: np.ndarray) -> None:
        self.matcher = matcher
        self.error: str | None = None
        """Why the grammar could not be advanced; None: it could."""
        self.mask = first_mask
        """Allowed next tokens, as in a Constraint."""


def advance(taken: Sequence[tuple[GrammarState, int]]) -> None:
    """Advance each of several states by a token, many in parallel, and set ``error`` where that fails."""
    if not taken:
        return
    from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

    parallel = len(taken) >= PARALLEL
    if parallel:
        followed = _executor().consume_token_par([(state.matcher, token) for state, token in taken])
    else:
        followed = [state.matcher.consume_token(token) for state, token in taken]
    going_on = [state for (state, _), ok in zip(taken, followed, strict=True) if ok]
    masks = np.zeros((len(going_on), len(taken[0][0].mask)), np.int32)
    if parallel and going_on:
        fill_next_token_bitmask_par(_executor(), [(state.matcher, i) for i, state in enumerate(going_on)], masks)
    for index, state in enumerate(going_on):
        if not parallel:
            fill_next_token_bitmask(state.matcher, masks, index)
        state.mask = masks[index]
    for state, _ in taken:
        if state.matcher.is_error():
            state.error = _first_line(state.matcher.get_error())


class Grammars:
    """Compiles grammars for one tokenizer, and keeps the last ones.

    A helper process compiles each first, within limits of time and memory. llguidance's own limits do not bound time
    and memory for all grammars, and a thread cannot be ended.
    """

    def __init__(self, tokenizer: "Tokenizer", vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """``vocab_size``: that of the model, which may be padded beyond the tokenizer's."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._checker = Target(f"{__name__}:GrammarCompiler", self._for_compiler)
        self._compiler: GrammarCompiler | None = None
        self._making = Lock()
        self._kept: OrderedDict[str, _Compiled] = OrderedDict()

    def start(self, grammar: Grammar, helper: Helper) -> GrammarState:
        """Return the state before the first token; in a thread with a large stack, since llguidance recurses.

        Raises RequestRefusedError, which names the grammar's source, for a grammar that is invalid or costs too much.
        """
        with self._making:
            compiled = self._kept.get(grammar.text)
            if compiled is not None:
                self._kept.move_to_end(grammar.text)
        if compiled is None:
            compiled = self._compile(grammar, helper)
        matcher, first_mask = compiled
        return GrammarState(matcher.deep_copy(), first_mask)

    def keeps(self, grammar: Grammar) -> bool:
        """Whether a grammar is kept, so that nothing is compiled for it."""
        return grammar.text in self._kept

    def prepare(self, helper: Helper) -> None:
        """Read the tokenizer in the helper's process and in this one, for which the first grammar would wait.

        Raises what ``Helper.call`` raises.
        """
        helper.call(self._checker, "check", _LEAST, seconds=COMPILE_SECONDS)
        self._own_compiler()

    def _compile(self, grammar: Grammar, helper: Helper) -> "_Compiled":
        source = grammar.source
        try:
            check_length(grammar.text)
            lark = helper.call(self._checker, "check", grammar.text, seconds=COMPILE_SECONDS)
            compiled = self._own_compiler().compile(lark)
        except TimeoutError as error:
            raise RequestRefusedError(
                f"{source}: it takes over {COMPILE_SECONDS} s to compile: simplify it", source
            ) from error
        except MemoryError as error:
            raise RequestRefusedError(f"{source}: it takes too much memory to compile: simplify it", source) from error
        except ValueError as error:
            raise RequestRefusedError(f"{source}: {error}", source) from error
        with self._making:
            self._kept[grammar.text] = compiled
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return compiled

    def _own_compiler(self) -> "GrammarCompiler":
        with self._making:  # once: it takes a second for the largest vocabularies
            if self._compiler is None:
                self._compiler = GrammarCompiler(*self._for_compiler())
            return self._compiler

    def _for_compiler(self) -> tuple[str | None, int, list[int]]:
        return self._tokenizer.to_json(), self._vocab_size, sorted(self._eos_token_ids)


type _Compiled = "tuple[LLMatcher, np.ndarray]"


class GrammarCompiler:
    """Compiles grammars for the tokens of one tokenizer."""

    def __init__(self, tokenizer: str | None, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """``tokenizer``: as JSON; None: it has no such form. Raises RequestRefusedError for one that is not supported,
        which no field of a request is to blame for."""
        self._vocab_size = vocab_size
        self._tokens: LLTokenizer | None = None
        self._error = ""
        try:
            self._tokens = _read_tokenizer(tokenizer, vocab_size, eos_token_ids)
        except ValueError as error:
            self._error = str(error)

    def check(self, text: str) -> str:
        """Return a Lark or GBNF grammar as Lark. Raises RequestRefusedError that says why it cannot be compiled."""
        try:
            lark = as_lark(text)
            self.compile(lark)
        except ValueError as error:
            raise RequestRefusedError(str(error)) from error
        return lark

    def compile(self, lark: str) -> _Compiled:
        """Return a matcher at its start and its first mask. Raises ValueError that says why the grammar is invalid."""
        from llguidance import LLMatcher
        from llguidance.numpy import fill_next_token_bitmask

        if self._tokens is None:
            raise ValueError(self._error)
        matcher = LLMatcher(self._tokens, lark, log_level=0, limits=_limits())
        masks = np.zeros((1, -(-self._vocab_size // 32)), np.int32)
        if not matcher.is_error():
            fill_next_token_bitmask(matcher, masks)
        faults = [one.get_error() for one in (matcher, _with_a_token(matcher, masks[0])) if one.is_error()]
        if faults:
            del matcher  # it may be large, and the error's frames live until Python collects cycles
            raise ValueError(_first_line(faults[0]))
        return matcher, masks[0]


def check_length(text: str) -> None:
    """Raise ValueError for a grammar that is too long."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has {len(text)} characters as a grammar, and the limit is {MAX_LENGTH}")


def as_lark(text: str) -> str:
    """Return a Lark or GBNF grammar as Lark; in a helper, since that may take long.

    Raises ValueError for one that is too long, or neither.
    """
    check_length(text)
    if _LARK.search(text):
        return text
    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # the reader of GBNF raises a bare Exception for some errors
        raise ValueError(_first_line(str(error))) from error


def _read_tokenizer(text: str | None, vocab_size: int, eos_token_ids: Sequence[int]) -> "LLTokenizer":
    from llguidance import LLTokenizer

    if text is None or not eos_token_ids:
        raise ValueError(
            "structured outputs need an end-of-sequence token and a fast tokenizer, and this model lacks one of them"
        )
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids))
    except Exception as error:  # any error of llguidance with a tokenizer that it does not support
        logger.warning("structured outputs are not available with this tokenizer: %s", error)
        raise ValueError("structured outputs are not available with this model's tokenizer") from error


def _with_a_token(matcher: "LLMatcher", mask: np.ndarray) -> "LLMatcher":
    """Return a copy advanced by the first token of the ``mask``: some grammars exceed limits only after a token."""
    copy = matcher.deep_copy()
    for token in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[:1]:
        copy.consume_token(int(token))
    return copy


def _limits() -> "LLParserLimits":
    """Return the limits of one grammar: tens of milliseconds for a step's mask, about 40 MB when compiled.

    In the worst case it has 100 MB of lexer states. A JSON schema of 200 fields needs less than a quarter of the
    initial fuel.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def _first_line(message: str) -> str:
    """Return the first line of llguidance's message, without the copy of the grammar that may follow."""
    return (message.strip().splitlines() or ["it cannot be used"])[0][:_MESSAGE_LENGTH]
