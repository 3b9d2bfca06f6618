"""Which kernels a device gets, and the proof that they are right on it. The only door to pallas_kernels."""
