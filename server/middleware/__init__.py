"""What happens to every request: ids, logs, keys, origins, timeouts, errors."""
