"""jaxgen itself, by ``jaxgen serve`` of this checkout."""

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from scripts.peers.peer import ROOT, SERVED_NAME, Launch, Site, token_ids


@dataclass(frozen=True, slots=True)
class Jaxgen:
    """``flags``: beside those that say which model; none: the defaults."""

    name: str = "jaxgen"
    note: str = "`jaxgen serve` with the defaults"
    flags: tuple[str, ...] = ()
    usage: str = "continuous"

    def prepare(self, site: Site, dtype: str) -> None:
        site.checkpoint(dtype)

    def versions(self, site: Site) -> dict[str, str]:  # noqa: ARG002 (it is this environment)
        command = ["git", "describe", "--always", "--dirty"]
        commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {"jaxgen": commit.stdout.strip(), "jax": version("jax")}

    def launch(self, site: Site, dtype: str, port: int) -> Launch:
        # Not the user's own cache: it may hold another token budget for this model, and what a first start makes.
        where = ["--model", str(site.checkpoint(dtype)), "--cache-dir", str(site.work_dir / "jaxgen-cache")]
        flags = [*where, "--served-model-name", SERVED_NAME, "--port", str(port)]
        return Launch([sys.executable, "-m", "jaxgen.server.cli", "serve", *flags, "--dtype", dtype, *self.flags])

    def tokens(self, answer: dict[str, Any]) -> list[int]:
        return token_ids(answer)
