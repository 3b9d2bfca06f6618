"""Families of models as data: how config.json is read, and which tensors make which parameter.

A family is a module of ``decoders``. ``huggingface`` reads configurations by the registry; what loads, converts, counts
or makes weights asks ``parameters`` for a model's table. Host only, no jax.
"""
