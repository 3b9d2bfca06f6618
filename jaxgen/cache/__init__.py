"""The host's side of the blocked KV cache: blocks, their owners, and cached prefixes. Host only, no jax."""
