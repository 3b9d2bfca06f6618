"""The metrics of /metrics."""
