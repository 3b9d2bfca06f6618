"""Outlines: directories that describe a model without its weights, made from headers. No jax.

``jaxgen plan`` and ``jaxgen models`` make them, for models on the hub and for GGUF files.
"""
