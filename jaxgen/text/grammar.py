"""Grammars that a request's text must follow: compiled in a helper process first, then here, and cached."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sampling_params import Grammar
from jaxgen.processes.helper import Helper, Target
from jaxgen.text.grammar_compiler import GrammarCompiler, check_length
from jaxgen.text.grammar_state import Cost, GrammarState

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from jaxgen.text.tokenizer import Tokenizer

MAX_CACHED = 32
"""Compiled grammars cached for later requests with the same grammar."""

MAX_CACHED_BYTES = 2**27
"""Most bytes of these together."""

COMPILE_SECONDS = 10
"""Longest time in which a helper compiles a grammar, once it has begun."""

_LEAST = 'start: "a"'


class Grammars:
    """Compiles grammars for one tokenizer, and caches the last ones.

    A helper process compiles each first, within limits of time and memory. llguidance's own limits do not bound time
    and memory for all grammars, and a thread cannot be ended.
    """

    def __init__(self, tokenizer: "Tokenizer", vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """``vocab_size``: that of the model, which may be padded beyond the tokenizer's."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._checker = Target("jaxgen.text.grammar_compiler:GrammarCompiler", self._for_compiler)
        self._compiler: GrammarCompiler | None = None
        self._making = Lock()
        self._cached: OrderedDict[str, _Compiled] = OrderedDict()

    def start(self, grammar: Grammar, helper: Helper) -> GrammarState:
        """Return the state before the first token; in a thread with a large stack, since llguidance recurses.

        Raises RequestRefusedError, which names the grammar's source, for a grammar that is invalid or costs too much.
        """
        with self._making:
            compiled = self._cached.get(grammar.text)
            if compiled is not None:
                self._cached.move_to_end(grammar.text)
        if compiled is None:
            compiled = self._compile(grammar, helper)
        return GrammarState(compiled.matcher.deep_copy(), compiled.first_mask, compiled.cost)

    def has_cached(self, grammar: Grammar) -> bool:
        """Whether a compiled grammar is cached, so that nothing is compiled for it."""
        return grammar.text in self._cached

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
            lark, *cost = helper.call(self._checker, "check", grammar.text, seconds=COMPILE_SECONDS)
            compiled = _Compiled(*self._own_compiler().compile(lark), Cost(*cost))
        except TimeoutError as error:
            raise RequestRefusedError(
                f"{source}: it takes over {COMPILE_SECONDS} s to compile: simplify it", source
            ) from error
        except MemoryError as error:
            raise RequestRefusedError(f"{source}: it takes too much memory to compile: simplify it", source) from error
        except ValueError as error:
            raise RequestRefusedError(f"{source}: {error}", source) from error
        with self._making:
            self._cached[grammar.text] = compiled
            while len(self._cached) > MAX_CACHED or self._cached_bytes > MAX_CACHED_BYTES:
                self._cached.popitem(last=False)
        return compiled

    @property
    def _cached_bytes(self) -> float:
        return sum(compiled.cost.num_bytes for compiled in self._cached.values())

    def _own_compiler(self) -> "GrammarCompiler":
        with self._making:  # once: it takes a second for the largest vocabularies
            if self._compiler is None:
                self._compiler = GrammarCompiler(*self._for_compiler())
            return self._compiler

    def _for_compiler(self) -> tuple[str | None, int, list[int]]:
        return self._tokenizer.to_json(), self._vocab_size, sorted(self._eos_token_ids)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A grammar at its start."""

    matcher: "LLMatcher"
    first_mask: np.ndarray
    cost: Cost
