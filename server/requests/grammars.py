"""Ask a helper process for the grammars of a request. Callers take turns (``jaxgen/processes/helpers.py``)."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sampling_params import Grammar
from jaxgen.processes.helper import Target
from jaxgen.processes.helpers import for_grammars
from jaxgen.server.config import Answers
from jaxgen.server.errors import bad_request
from jaxgen.server.requests.structured import closes_objects
from jaxgen.server.schema.base import ResponseFormat, SamplingFields
from jaxgen.text.grammar import COMPILE_SECONDS

_WRITER = Target("jaxgen.server.requests.grammar_writer:GrammarWriter")


async def answer_grammar(body: SamplingFields, settings: Answers, caller: str) -> Grammar | None:
    """Return the grammar of ``response_format`` or ``structured_outputs``; None: any text. Raises ApiError 400."""
    if body.response_format is None and body.structured_outputs is None:
        return None
    source = "response_format" if body.structured_outputs is None else "structured_outputs"
    length = len(body.model_dump_json(include={"response_format", "structured_outputs"}))
    given = {"closed": closes_objects(body, settings)}
    written = await _ask(source, caller, length, "answer", body.response_format, body.structured_outputs, **given)
    return None if written is None else Grammar(*written)


async def call_grammar(
    name: str,
    tools: Sequence[tuple[str, Mapping[str, Any]]],
    tokens: Mapping[str, int],
    *,
    several: bool,
    closed: bool,
    caller: str,
) -> str:
    """Return the grammar of tool calls; see GrammarWriter. Raises ApiError 400."""
    length = sum(len(str(schema)) for _, schema in tools)
    return str(await _ask("tools", caller, length, "calls", name, tools, tokens, several=several, closed=closed))


def prepare() -> Future[object]:
    """Begin to make what the first request with a schema would wait for, aside."""
    asked = ResponseFormat.model_validate({"type": "json_schema", "json_schema": {"name": "first", "schema": {}}})
    options = {"seconds": COMPILE_SECONDS, "closed": True}
    return for_grammars().prepare(lambda helper: helper.call(_WRITER, "answer", asked, None, **options))


async def _ask(source: str, caller: str, length: int, method: str, *arguments: Any, **options: Any) -> Any:
    """Return what a method of the GrammarWriter returns. ``source``: the field that errors name."""
    work = for_grammars().submit(
        caller, lambda helper: helper.call(_WRITER, method, *arguments, seconds=COMPILE_SECONDS, **options), length
    )
    try:
        return await asyncio.wrap_future(work)
    except RequestRefusedError as error:
        raise bad_request(str(error), error.param or source) from error
    except TimeoutError as error:
        raise bad_request(
            f"{source}: it takes over {COMPILE_SECONDS} s to make a grammar of it: simplify it.", source
        ) from error
    except MemoryError as error:
        raise bad_request(
            f"{source}: it takes too much memory to make a grammar of it: simplify it.", source
        ) from error
