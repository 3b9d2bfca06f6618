"""Check the import contracts of pyproject.toml.

grimp, which reads the imports, does not follow links, but jaxgen/server and jaxgen/weights are links. So it reads a
copy of the packages without links.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Return the exit status of lint-imports."""
    with tempfile.TemporaryDirectory() as folder:
        for package in ("jaxgen", "pallas_kernels"):
            shutil.copytree(ROOT / package, Path(folder, package), ignore=shutil.ignore_patterns("__pycache__"))
        lint_imports = Path(sys.executable).parent / "lint-imports"
        command = [str(lint_imports), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
        return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": folder}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
