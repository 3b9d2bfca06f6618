"""Kernels for NVIDIA GPUs in Pallas Mosaic GPU (Hopper: bulk copies, mbarriers, wgmma), each with the signature of its
``_ref`` twin in ``pallas_kernels`` and two keywords more: ``num_ctas``, the thread blocks of its persistent grid (one
per multiprocessor is best, any number is right), and ``interpret``, to run it on a CPU for a test.

In place: a kernel that returns the cache updates the cache it was given where that is donated or a loop's carry.
"""
