"""Quantized weights: how checkpoints encode them, how they are rounded, and the formats in which they stay.

``huggingface`` reads encoded tensors by ``methods``; ``gguf``, ``converted`` and ``load`` round weights and choose
formats. Host only, no jax.
"""
