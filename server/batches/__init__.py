"""Files that callers keep here, and batches: files whose lines are requests, answered when nobody else asks."""
