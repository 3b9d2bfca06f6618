"""Kernels on a blocked KV cache and on packed weights, the ground floor: imports jax and numpy only.

Each kernel has a readable twin in plain ``jnp`` whose name ends in ``_ref``; ``cpu`` has them in C++, ``gpu`` in
Pallas. The cache layout is common to all:
``[num_blocks, layers, 2 (K, V), kv_heads, block_size, head_dim]``, so that one head of one block is contiguous (one
bulk copy on a GPU) and so is a block over all its layers (one transfer to host memory).
"""
