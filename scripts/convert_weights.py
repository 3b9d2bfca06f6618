"""Convert a Hugging Face checkpoint to an Orbax checkpoint: the same as ``jaxgen convert-weights``."""

import sys

from jaxgen.server.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert-weights", *sys.argv[1:]]))
