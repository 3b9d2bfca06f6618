"""Measure this machine's device and check the engine on it; see ``--help`` and docs/gpu_check.md."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from scripts.device_check.cli import main

    sys.exit(main())
