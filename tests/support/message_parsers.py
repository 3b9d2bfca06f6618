"""What parsers of messages make of a text, however it is cut."""

from collections.abc import Callable, Iterable

from jaxgen.server.tool_calls.deltas import CallStart, Delta, calls_of, content_of, merged, reasoning_of
from jaxgen.server.tool_calls.parser import MessageParser

Make = Callable[[], MessageParser]


def deltas_of(make: Make, pieces: Iterable[str], *, cut: bool = False) -> tuple[Delta, ...]:
    """Without the ids of calls."""
    parser = make()
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    deltas += parser.finish(cut=cut)
    assert parser.called <= any(isinstance(delta, CallStart) for delta in deltas)
    return merged([delta._replace(call_id="") if isinstance(delta, CallStart) else delta for delta in deltas])


def message(make: Make, text: str, *, cut: bool = False) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content, and names and arguments of calls; the same whole and character by character."""
    deltas = deltas_of(make, [text], cut=cut)
    assert deltas_of(make, text, cut=cut) == deltas
    functions = [call["function"] for call in calls_of(deltas)]
    calls = [(function["name"], function["arguments"]) for function in functions]
    return reasoning_of(deltas), content_of(deltas), calls


def content_places(make: Make, text: str) -> list[int]:
    """Where in the text the characters of the content are, by the parser's ``starts``."""
    parser = make()
    content = content_of([*parser.push(text), *parser.finish()])
    starts = parser.starts or [(0, 0)]
    return [max(place - start for start, place in starts if start <= i) + i for i in range(len(content))]


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    at = sorted(cut for cut in cuts if cut <= len(text))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
