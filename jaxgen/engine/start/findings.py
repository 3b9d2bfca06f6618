"""Facts that an engine finds by running its programs before the first request, and keeps for the next start."""

from dataclasses import asdict, dataclass
from pathlib import Path

from jaxgen.engine.start.narrow import NarrowResult
from jaxgen.engine.start.step_time_probe import StepSamples
from jaxgen.files.cache_files import find_json, keep_json


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a model whose logits are finite. ``narrow``: on the narrow program; None: there is none.

    ``slow_starts``: starts in which the narrow program was too slow, one after the other.
    """

    narrow: NarrowResult | None
    times: StepSamples
    slow_starts: int = 0


def read_findings(path: Path | None) -> Findings | None:
    """Return the findings of an earlier start, or None if there are none. A damaged file is removed, with a warning."""
    values = find_json(path, "the programs are checked and timed again")
    if values is None:
        return None
    narrow = values["narrow"]
    result = None if narrow is None else NarrowResult(**narrow)
    return Findings(result, StepSamples.read(values["times"]), values["slow_starts"])


def write_findings(path: Path | None, findings: Findings) -> None:
    """Write the findings for the next start. If that fails, log a warning."""
    keep_json(path, asdict(findings))
