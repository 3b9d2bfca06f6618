"""KV blocks that are saved to host memory and restored from it.

``planning``: which tokens of a context to copy, to project from stored layer inputs, and to recompute from their ids.
``tiers``: the blocks in host memory and in a KV tier behind it, and which to save and restore. ``transfer``: the
copies. For a KV cache that crosses the link in every decode step, layer by layer, see jaxgen.layerwise.
"""
