"""Time the first token of a known prefix over a KV tier behind a delayed link."""
