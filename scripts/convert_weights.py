"""Convert a Hugging Face checkpoint to an Orbax checkpoint: the same as ``jaxgen convert-weights``."""

from jaxgen.weights.convert import main

if __name__ == "__main__":
    main()
