"""Put an engine together from weights, tokenizer and device: the composition root.

``load_engine`` begins. ``resolve`` finds model and device (``find_model``, ``device``, ``kernels``) and returns a
``resolved_model``. ``text_settings`` reads tokenizer and chat template. ``build`` then loads ``parameters``, compiles
``programs`` and makes the engine. ``digest`` names what its answers' bits depend on.
"""
