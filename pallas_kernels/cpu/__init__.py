"""Kernels in C++ for CPUs, called by XLA through its foreign function interface.

``loading.load`` compiles them for this machine, proves them in a process of its own and hands them out. One handler
serves float32 and bfloat16. A token's result has the same bits whatever else is in its batch.
"""
