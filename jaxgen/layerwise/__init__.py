"""A KV cache that is in host memory and crosses the link layer by layer in each step."""
