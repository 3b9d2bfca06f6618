"""Write the grammars of requests, in a helper process: schemas of callers may take long, or much memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxgen.core.errors import RequestRefusedError
from jaxgen.server.errors import ApiError
from jaxgen.server.requests.call_grammars import write_calls
from jaxgen.server.requests.structured import resolve_grammar
from jaxgen.server.schema.base import ResponseFormat, StructuredOutputs
from jaxgen.text.grammar_compiler import as_lark


class GrammarWriter:
    """The methods raise RequestRefusedError with the words and the field of the caller's error."""

    def answer(
        self, asked: ResponseFormat | None, structured: StructuredOutputs | None, *, closed: bool
    ) -> tuple[str, str] | None:
        """Return the grammar of ``response_format`` or ``structured_outputs`` in Lark, and the field's name; None: any
        text."""
        try:
            grammar = resolve_grammar(asked, structured, closed=closed)
        except ApiError as error:
            raise _refused(error) from error
        if grammar is None:
            return None
        try:
            return as_lark(grammar.text), grammar.source
        except ValueError as error:
            raise RequestRefusedError(f"{grammar.source}: {error}.", grammar.source) from error

    def calls(
        self,
        name: str,
        tools: Sequence[tuple[str, Mapping[str, Any]]],
        tokens: Mapping[str, int],
        *,
        several: bool,
        closed: bool,
    ) -> str:
        """Return the grammar of calls; see ``write_calls``. ``tokens``: ids of the marks that are single tokens."""
        try:
            return write_calls(name, tools, tokens.get, several=several, closed=closed)
        except ApiError as error:
            raise _refused(error) from error


def _refused(error: ApiError) -> RequestRefusedError:
    return RequestRefusedError(error.message, error.param)
