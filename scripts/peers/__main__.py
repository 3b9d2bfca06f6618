"""Measure jaxgen beside OpenVINO GenAI, vLLM, llama.cpp and transformers: the same weights, load and machine.

    .venv/bin/python -m scripts.peers --rounds 1 --seconds 6 --warmup 3     all of them, in 20 minutes
    .venv/bin/python -m scripts.peers                                       three rounds, an hour
    .venv/bin/python -m scripts.peers --page-only                           docs/peers.md anew

Each peer has an environment of its own under --work-dir, made on the first run (Python 3.11, packages from PyPI).
"""

import sys

from scripts.peers.cli import main

if __name__ == "__main__":
    sys.exit(main())
