"""What an engine finds out by running its programs before the first request, and keeps for the next start."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxgen.core.kept_files import find, keep
from jaxgen.engine.narrow import Verdict
from jaxgen.engine.step_time_probe import StepSamples


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of a model whose logits are finite. ``narrow``: on the narrow program; None: there is none."""

    narrow: Verdict | None
    times: StepSamples


def kept_findings(path: Path | None) -> Findings | None:
    """Return the findings of an earlier start, or None if there are none. A damaged file is removed, with a warning."""
    text = None if path is None else find(path, "the programs are checked and timed again")
    if text is None:
        return None
    kept = json.loads(text)
    narrow = kept["narrow"]
    return Findings(None if narrow is None else Verdict(**narrow), StepSamples.read(kept["times"]))


def keep_findings(path: Path | None, findings: Findings) -> None:
    """Write the findings for the next start. If that fails, log a warning."""
    if path is not None:
        keep(path, json.dumps(asdict(findings), indent=1))
