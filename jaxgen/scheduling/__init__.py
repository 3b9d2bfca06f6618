"""Dynamic SplitFuse: which tokens of which sequences the next step computes. Host only, no jax.

Begin at ``planner``; ``service`` is for requests with classes, priorities and tenants.
"""
