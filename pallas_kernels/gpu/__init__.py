"""Kernels for NVIDIA GPUs in Pallas Mosaic GPU.

Each has the signature of its ``_ref`` twin in ``pallas_kernels``, plus ``interpret``, with which a test runs it on a
CPU. Hopper (sm_90a: bulk copies, mbarriers, wgmma, warp specialisation) has all of them. ``bulk=False`` takes the form
for Ampere and Ada or for any GPU, where there is one. ``wgmma=False`` takes the attention for all others. Grids are
persistent: a fixed number of thread blocks, one per multiprocessor at best, shares a list of items.

A kernel that returns the cache updates it in place, if the given cache is donated or a loop's carry.

The parts of ``ragged_paged_attention`` are in ``attention``: ``items`` divides the work, ``walk`` and ``mma`` walk over
the context, ``tile`` computes with its tiles, ``combine`` combines its pieces, and ``online_softmax`` has the
arithmetic that all share.
"""
