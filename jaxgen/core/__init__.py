"""Types that every room knows: requests, sequences, step plans, configuration, errors. Host only, no jax."""
