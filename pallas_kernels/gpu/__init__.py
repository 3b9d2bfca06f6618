"""Kernels for NVIDIA GPUs in Pallas Mosaic GPU, each with the signature of its ``_ref`` twin in ``pallas_kernels`` and,
to run it on a CPU for a test, ``interpret``. Hopper (sm_90a: bulk copies, mbarriers, wgmma, warp specialisation) has
all of them; ``bulk=False`` takes the form for Ampere and Ada or for any GPU, where there is one, and ``wgmma=False``
the attention for all others. Grids are persistent: a fixed number of thread blocks, one per multiprocessor at best,
shares a list of items.

In place: a kernel that returns the cache updates the cache it was given where that is donated or a loop's carry.

The parts of ``ragged_paged_attention`` are ``attention_items`` (who computes what), ``attention_walk`` and
``attention_mma`` (over the context), ``attention_tile`` (what both do with its tiles), ``attention_combine`` (of its
pieces) and ``online_softmax`` (the arithmetic that all share).
"""
