"""What a streamed step copies, projects and keeps. Host only, no jax."""
