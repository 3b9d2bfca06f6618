"""What this machine can do at most."""

import json
import subprocess

from scripts.peers.environment import TORCH, Environment
from scripts.peers.peer import Site
from scripts.peers.shapes import ROOT

ENVIRONMENT = Environment("torch", ((TORCH, "numpy"),))


def measure_limits(site: Site) -> dict[str, float]:
    """Return the rates of memory and of matmuls in each dtype."""
    ENVIRONMENT.make(site)
    command = [str(ENVIRONMENT.python(site)), "-m", "scripts.peers.limits_worker", str(site.threads)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates
