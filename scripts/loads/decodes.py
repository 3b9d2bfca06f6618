"""Let an engine decode many sequences, all at one context."""

from dataclasses import dataclass

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine


@dataclass(frozen=True)
class Load:
    """Contexts and step count of one measurement."""

    context: int
    rows: int
    repeats: int


def fill(engine: Engine, load: Load) -> None:
    """Bring ``rows`` sequences to their context."""
    params = SamplingParams(max_tokens=load.repeats * 4 + 64, temperature=0.0, ignore_eos=True)
    for row in range(load.rows):
        engine.add(Request(f"decode-{row}", tuple(1 + (row * 31 + i) % 1000 for i in range(load.context)), params))
    started: set[str] = set()
    while len(started) < load.rows:
        started |= {event.request_id for event in engine.step()}
