"""Virtual environments of the peers, each with its own packages, made once."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.peers.peer import PeerError, Site, run_logged

PYTHON = (3, 11)
"""The version that the small wheel of torch for CPUs is built for, and so what is built on it."""
TORCH = "torch==2.13.0"


@dataclass(frozen=True, slots=True)
class Environment:
    """``installs``: requirements of one call of pip after another, pinned where they name a peer. ``without``: what
    these bring along and is removed again."""

    name: str
    installs: tuple[tuple[str, ...], ...]
    without: tuple[str, ...] = ()

    def make(self, site: Site) -> None:
        """Make it, unless what is there was made with the same packages. Raises PeerError."""
        stamp, wanted = self._directory(site) / ".installed", repr((self.installs, self.without))
        if stamp.exists() and stamp.read_text() == wanted:
            return
        log = site.log(f"environment-{self.name}")
        print(f"{self.name}: making its environment (once; {log})", flush=True)
        if not self.python(site).exists():
            run_logged([find_python(), "-m", "venv", str(self._directory(site))], log)
        pip = [str(self.python(site)), "-m", "pip"]
        for requirements in self.installs:
            run_logged([*pip, "install", "--quiet", *requirements], log)
        if self.without:
            run_logged([*pip, "uninstall", "--quiet", "--yes", *self.without], log)
        stamp.write_text(wanted)

    def python(self, site: Site) -> Path:
        return self._directory(site) / "bin" / "python"

    def versions(self, site: Site, packages: tuple[str, ...]) -> dict[str, str]:
        listed = subprocess.run(
            [self.python(site), "-m", "pip", "list", "--format", "json"], capture_output=True, check=True
        )
        installed = {one["name"].lower(): one["version"] for one in json.loads(listed.stdout)}
        return {name: installed[name] for name in packages}

    def _directory(self, site: Site) -> Path:
        return site.work_dir / "envs" / self.name


@cache
def find_python() -> str:
    """An interpreter of version ``PYTHON`` with venv. Each is tried by running it: a pyenv shim is found and fails."""
    wanted = f"import sys, venv, ensurepip; assert sys.version_info[:2] == {PYTHON}"
    for candidate in _candidates():
        if subprocess.run([candidate, "-c", wanted], capture_output=True, check=False).returncode == 0:
            return candidate
    version = ".".join(map(str, PYTHON))
    raise PeerError(f"no Python {version} with venv found: install one, for example 'pyenv install {version}'")


def _candidates() -> Iterator[str]:
    version = ".".join(map(str, PYTHON))
    for name in (f"python{version}", "python3"):
        if found := shutil.which(name):
            yield found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/{version}*/bin/python3")))
