"""Measure several replicas live, for docs/scale.md: real servers and sockets, by SMG and without a router.

    .venv/bin/python -m scripts.scaling pinned      two replicas on a core each, beside one of them alone
    .venv/bin/python -m scripts.scaling sleeping    1 to 16 processes whose device sleeps, beside virtual time
    .venv/bin/python -m scripts.scaling page        the page of what was measured before

SMG is a package of its own: --smg is its command, in whatever environment it is.
"""

import sys

from scripts.scaling.cli import main

if __name__ == "__main__":
    sys.exit(main(__doc__))
