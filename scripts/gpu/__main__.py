"""Measure this machine's device and check the engine on it; see ``--help`` and docs/gpu_check.md."""

import sys

from scripts.gpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
