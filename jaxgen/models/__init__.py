"""The models: layers, attention, the cache and parameters, as a step runs them."""
