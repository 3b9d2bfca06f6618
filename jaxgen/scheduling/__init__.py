"""Dynamic SplitFuse: which tokens of which sequences the next step computes. Host only, no jax."""
