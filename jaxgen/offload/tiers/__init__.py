"""KV blocks outside the device: in host memory, and in a KV tier behind it. Host only, no jax."""
