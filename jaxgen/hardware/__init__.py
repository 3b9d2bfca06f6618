"""What the machine has: devices and NVIDIA's driver, asked without jax."""
