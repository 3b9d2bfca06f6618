"""What was measured of one model on one device, as a file in docs/results."""

import json
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from jaxgen.hardware.device_info import DeviceInfo

PREFIX = "offload-"


@dataclass
class Record:
    """``parts``: by name, its rows and how they were made."""

    model: str
    device: str
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return f"{PREFIX}{self.model}-{re.sub('[^a-z0-9]+', '-', self.device.lower()).strip('-')}"

    def put(self, part: str, rows: list[dict[str, Any]], *, repeats: int, seconds: float) -> None:
        """In place of what was there."""
        self.parts[part] = {
            "date": datetime.now(UTC).date().isoformat(),
            "jax": jax.__version__,
            "repeats": repeats,
            "seconds": round(seconds),
            "load_average": os.getloadavg()[1],
            "rows": rows,
        }

    def rows(self, part: str) -> list[dict[str, Any]]:
        """Those that were measured."""
        return [row for row in self.parts.get(part, {"rows": []})["rows"] if "not_run" not in row]


def read_record(directory: Path, model: str, device: DeviceInfo) -> Record:
    """What is known of the model on this device; an empty record if nothing is."""
    cores = f", {device.num_cores} cores" if device.is_cpu else ""
    record = Record(model, device.kind + cores)
    path = directory / f"{record.stem}.json"
    return Record(**json.loads(path.read_text())) if path.exists() else record


def read_all(directory: Path) -> list[Record]:
    return [Record(**json.loads(path.read_text())) for path in sorted(directory.glob(f"{PREFIX}*.json"))]


def write_record(directory: Path, record: Record) -> None:
    about = {"model": record.model, "device": record.device, "parts": record.parts}
    (directory / f"{record.stem}.json").write_text(json.dumps(rounded(about), indent=1) + "\n")


def rounded(value: Any) -> Any:
    """With floats of six significant digits: what is measured has fewer."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
