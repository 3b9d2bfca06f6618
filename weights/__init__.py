"""Load checkpoints, Hugging Face and Orbax directories, into the engine's parameter tree; convert one to the other."""

if __name__ != "jaxgen.weights":
    raise ImportError("import jaxgen.weights: its folder stands beside jaxgen/, and is reached by the link in there")
