"""Callers' files, and batches: files whose lines are requests, answered in the background of other requests."""
