"""jaxgen itself, by ``jaxgen serve`` of this checkout."""

import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripts.peers.peer import SERVED_NAME, Launch, Site, response_format, token_ids
from scripts.peers.shapes import FORMATS, ROOT, Format


@dataclass(frozen=True, slots=True)
class Jaxgen:
    name: str = "jaxgen"
    note: str = "`jaxgen serve` with the defaults"
    usage: str = "continuous"
    formats: Collection[str] = frozenset(FORMATS)

    def prepare(self, site: Site, wanted: Format) -> None:
        self._model(site, wanted)

    def versions(self, site: Site) -> dict[str, str]:  # noqa: ARG002 (it is this environment)
        command = ["git", "describe", "--always", "--dirty"]
        commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {"jaxgen": commit.stdout.strip(), "jax": version("jax")}

    def launch(self, site: Site, wanted: Format, port: int) -> Launch:
        flags = {
            "--model": str(self._model(site, wanted)),
            # Not the user's own: it may hold another token budget for this model, and what a first start makes.
            "--cache-dir": str(site.work_dir / "jaxgen-cache"),
            "--served-model-name": SERVED_NAME,
            "--port": str(port),
            "--dtype": wanted.dtype,
        }
        if wanted.is_quantised:
            flags["--quantization"] = wanted.name
        command = [sys.executable, "-m", "jaxgen.server.cli", "serve"]
        return Launch(command + [word for flag in flags.items() for word in flag])

    def _model(self, site: Site, wanted: Format) -> Path:
        return site.gguf(wanted) if wanted.is_file else site.checkpoint(wanted.dtype)

    def fitting(self, schema: dict[str, Any]) -> dict[str, Any]:
        return response_format(schema)

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return token_ids(answer)
