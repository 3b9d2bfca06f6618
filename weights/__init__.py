"""Checkpoints: Hugging Face and Orbax directories to the engine's parameter tree, and the convert command."""

if __name__ != "jaxgen.weights":
    raise ImportError("import jaxgen.weights: its folder stands beside jaxgen/, and is reached by the link in there")
