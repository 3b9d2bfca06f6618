"""Serve loads in virtual time: the server's own scheduler, a model of what steps cost, and no device.

    .venv/bin/python -m scripts.simulation                        FastGen's benchmark: a line of JSON for each point
    .venv/bin/python -m scripts.simulation --trace FILE           a trace, its figures as JSON
    .venv/bin/python -m scripts.simulation --device FILE ...      closed loops on a GPU whose result files are given
    .venv/bin/python -m scripts.simulation --check                against live runs on this machine

docs/simulation.md says what is simulated and what came of it.
"""

import sys

from scripts.simulation.cli import main

if __name__ == "__main__":
    sys.exit(main(__doc__))
