"""Kernels on a blocked KV cache and on packed weights, the lowest layer: imports jax and numpy only.

Each kernel has a readable twin in plain ``jnp``, whose name ends in ``_ref``. ``cpu`` has the kernels in C++, ``gpu``
in Pallas. The cache layout is common to all: ``[num_blocks, layers, 2 (K, V), kv_heads, block_size, head_dim]``. So one
head of one block is contiguous, which is one bulk copy on a GPU. A block over all its layers is contiguous too, which
is one transfer to host memory.
"""
