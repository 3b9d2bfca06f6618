"""Train, evaluate and export the embedded demonstration model; see ``--help``. Needs the extra ``train`` (optax)."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from scripts.demo_model.cli import main

    main()
