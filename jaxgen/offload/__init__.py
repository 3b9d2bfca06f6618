"""KV kept in host memory and brought back: what is decided here is arithmetic, without jax.

``planner``: which tokens of a context to copy, to project from stored layer inputs, and to compute again from their
ids. ``streaming``: the same choice for KV that crosses the link in every decode step, layer by layer.
"""
