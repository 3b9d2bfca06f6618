"""Hugging Face directories: fetched from the hub, their configuration and templates, and their tensors as parameters.

``load`` reads models by this room, and jaxgen the files that describe texts, answers and embeddings. Host only, no jax.
"""
