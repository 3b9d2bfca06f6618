"""Copies of KV blocks between device and host, and their formats."""
