"""KV blocks that are saved to host memory and restored from it.

``restore_plan``: which tokens of a context to copy, to project from stored layer inputs, and to recompute from their
ids. ``tier``: which blocks to save and restore. ``kv_transfer``: the copies. For a KV cache that crosses the link in
every decode step, layer by layer, see jaxgen.layerwise.
"""
