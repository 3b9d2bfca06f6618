"""Compile grammars, within the limits of one and with a measure of what its tokens take. Host only, no jax."""

import logging
import re
from collections.abc import Sequence
from functools import partial
from random import Random
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from jaxgen.core.errors import RequestRefusedError
from jaxgen.hardware.free_memory import allocated_bytes
from jaxgen.text.gbnf import gbnf_to_lark
from jaxgen.text.grammar_state import first_line, next_mask

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

logger = logging.getLogger(__name__)

MAX_LENGTH = 2**17
"""Longest grammar, in characters."""

WALK_TOKENS = 16
"""Tokens by which a helper advances a compiled grammar, to measure what one takes."""

WALK_SECONDS = 0.25
"""Seconds of a processor after which it advances no further."""

MOST_TOKEN_SECONDS = 0.01
"""Most seconds of a processor that one of these tokens may take, on average."""

_LARK = re.compile(r"(?m)^[^\S\n]*(%llguidance\b|start\s*:)")
"""What is found in Lark; a grammar without it is GBNF. llguidance's own pattern looks past line breaks, in a time
quadratic in their number."""

_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}"
    r"|U([0-9a-fA-F]{8})|.)",
    re.DOTALL,
)
"""Finds a backslash with what belongs to it: half a pair of backslashes begins no escape."""


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

    def check(self, text: str) -> tuple[str, float, int]:
        """Return a Lark or GBNF grammar as Lark, the seconds that a token takes, and the bytes of the compiled grammar.

        Raises RequestRefusedError that says why it cannot be compiled, or that its tokens take too long.
        """
        try:
            lark = as_lark(text)
            before = allocated_bytes()
            matcher, mask = self.compile(lark)
            seconds = seconds_per_token(matcher.deep_copy(), mask)
        except ValueError as error:
            raise RequestRefusedError(str(error)) from error
        if seconds > MOST_TOKEN_SECONDS:
            raise RequestRefusedError(
                f"each token takes {1000 * seconds:.0f} ms with it, the limit is {1000 * MOST_TOKEN_SECONDS:.0f} ms: "
                "simplify it"
            )
        return lark, seconds, max(0, allocated_bytes() - before)

    def compile(self, lark: str) -> "tuple[LLMatcher, np.ndarray]":
        """Return a matcher at its start and its first mask. Raises ValueError that says why the grammar is invalid."""
        from llguidance import LLMatcher

        if self._tokens is None:
            raise ValueError(self._error)
        matcher = LLMatcher(self._tokens, lark, log_level=0, limits=_limits())
        words = -(-self._vocab_size // 32)
        mask = np.zeros(words, np.int32) if matcher.is_error() else next_mask(matcher, words)
        faults = [state.get_error() for state in (matcher, _with_a_token(matcher, mask)) if state.is_error()]
        if faults:
            del matcher  # it may be large, and the error's frames live until Python collects cycles
            raise ValueError(first_line(faults[0]))
        return matcher, mask


def check_length(text: str) -> None:
    """Raise ValueError for a grammar that is too long."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has {len(text)} characters as a grammar, and the limit is {MAX_LENGTH}")


def as_lark(text: str) -> str:
    """Return a Lark or GBNF grammar as Lark; in a helper, since that may take long.

    Raises ValueError for one that is too long, or neither.
    """
    check_length(text)
    is_lark = _LARK.search(text) is not None
    if "\\u" in text or "\\U" in text:
        text = _ESCAPE.sub(partial(_unescaped, is_lark=is_lark), text)
    if is_lark:
        return text
    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # the reader of GBNF raises a bare Exception for some errors
        raise ValueError(first_line(str(error))) from error


def _unescaped(escape: re.Match[str], *, is_lark: bool) -> str:
    """Return the character of an escape that llguidance does not read in texts and patterns alike.

    ASCII stays escaped, since it may have a meaning there; GBNF has it as ``\\x41``. So does half a surrogate pair.
    """
    first, second, *codes = escape.groups()
    code = int(next((digits for digits in codes if digits), "0"), 16)
    if first:
        code = 0x10000 + ((int(first, 16) - 0xD800) << 10) + int(second, 16) - 0xDC00
    if 0xA0 <= code <= 0x10FFFF and code not in range(0xD800, 0xE000):
        return chr(code)
    return escape[0] if is_lark or not any(codes) or code > 0xFF else f"\\x{code:02x}"


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
    for token in _tokens_of(mask)[:1]:
        copy.consume_token(int(token))
    return copy


def seconds_per_token(matcher: "LLMatcher", mask: np.ndarray) -> float:
    """Return the mean time of a processor in which a matcher is advanced, by tokens drawn from its masks.

    A walk ends where the grammar does, or cannot go on.
    """
    draw = Random(0)
    began, count = thread_time(), 0
    while count < WALK_TOKENS and thread_time() - began < WALK_SECONDS:
        tokens = _tokens_of(mask)
        if not len(tokens) or not matcher.consume_token(int(tokens[draw.randrange(len(tokens))])):
            break
        count += 1
        mask = next_mask(matcher, len(mask))
        if matcher.is_error() or matcher.is_stopped():
            break
    return (thread_time() - began) / max(1, count)


def _tokens_of(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


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
