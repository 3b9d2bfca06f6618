"""Files and folders that all rooms keep or read. Host only, no jax."""
