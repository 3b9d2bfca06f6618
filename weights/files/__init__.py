"""Files of a model directory, opened safely: names, JSON, safetensors, checksums, and directories written at once.

All other rooms of ``weights`` read a model's files through this one, but chat templates. Host only, no jax.
"""
