"""Draft tokens from what a request's own tokens went on with before. Host only, no jax."""
