"""Load checkpoints, Hugging Face and Orbax directories, into the engine's parameter tree; convert one to the other."""

if __name__ != "jaxgen.weights":
    raise ImportError(
        "import jaxgen.weights: jaxgen/weights is a symlink to weights/. On Windows clone with core.symlinks=true"
    )
