"""How many requests the fuzz tests send to servers of fake engines, in the quick run and in the full one."""

from hypothesis import HealthCheck, settings

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
