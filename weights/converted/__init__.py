"""Converted directories, jaxgen's own: an Orbax checkpoint, and the manifest by which it is verified.

``convert`` writes them and ``load`` reads them. Only ``checkpoint`` needs jax.
"""
