"""Draft tokens from texts: what a request's own tokens, or earlier answers, went on with. Host only, no jax."""
