"""Middleware for every request: ids, logs, API keys, origins, timeouts, deadlines, errors."""
