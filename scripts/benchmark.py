"""Measure an OpenAI-compatible server under load: the same as ``jaxgen benchmark``."""

import sys

from jaxgen.server.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", *sys.argv[1:]]))
