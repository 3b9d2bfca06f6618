"""How many requests the fuzz tests send to servers of fake engines, in the quick run and in the full one.

FUZZ_EXAMPLES=N in the environment has the full run send N each: some thousands after a change of what it tests.
"""

import os

from hypothesis import HealthCheck, settings

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "120")), deadline=None, suppress_health_check=list(HealthCheck)
)
