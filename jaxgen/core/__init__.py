"""Types that all packages use: requests, sequences, step plans, configuration, errors. Host only, no jax."""
