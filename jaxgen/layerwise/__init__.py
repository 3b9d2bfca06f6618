"""A KV cache that stays in host memory and crosses the link layer by layer."""
