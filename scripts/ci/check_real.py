"""Run the tests of a real model, which pip fetches first; say so and end with LEFT_OUT where pip cannot.

What arrives must be what is pinned, and must pass: else this fails.
"""

import os
import subprocess
import sys
from pathlib import Path

from jaxgen.files.cache_dirs import open_cache_dirs
from jaxgen.weights.packaged.files import NotFetchedError, fetched
from jaxgen.weights.packaged.models import PACKAGED_MODELS
from scripts.ci.run_tests import LEFT_OUT, SHARED
from tests.support.real_model import NAME


def main() -> int:
    folder = os.environ.get(SHARED)
    caches = open_cache_dirs(Path(folder, "cache") if folder else None)
    try:
        fetched(NAME, PACKAGED_MODELS[NAME], caches)
    except NotFetchedError as error:
        print(f"left out: {error}")
        return LEFT_OUT
    command = (sys.executable, "-m", "pytest", "-q", "-s", "-m", "real", "--durations=10", "tests/real")
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
