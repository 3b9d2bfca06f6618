"""What a restore costs and how it is divided. Host only, no jax."""
