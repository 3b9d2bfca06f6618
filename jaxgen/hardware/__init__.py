"""The machine's devices and NVIDIA's driver, found without jax."""
