"""Choose the kernels of a device, and prove that they are correct on it. The only package that uses pallas_kernels."""
