"""Checkpoints: Hugging Face and Orbax directories to the engine's parameter tree, and the convert command."""
