"""``python -m scripts.faults``."""

import sys

from scripts.faults.cli import main

sys.exit(main())
