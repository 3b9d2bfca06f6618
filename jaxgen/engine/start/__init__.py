"""What happens once, before the first request: compile, check, measure, and join the engine's parts.

Runs in the engine's thread. Only ``join`` never reaches jax.
"""
