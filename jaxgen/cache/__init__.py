"""The blocked KV cache as the host sees it: blocks, prefixes, and who holds them. Host only, no jax."""
