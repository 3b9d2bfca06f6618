"""Serve classes with latency targets, priorities and tenants with shares: what first in, first out knows nothing of."""
