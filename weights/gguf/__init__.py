"""GGUF files, llama.cpp's format: found, described as Hugging Face would, and read as parameters.

``convert`` converts them by ``model``, ``outline`` describes them, and ``conversions`` keeps what was converted for
models that are served. Host only, no jax.
"""
