"""Proofs of a GPU's kernels, in a process of their own. Host only, no jax."""
