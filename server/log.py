"""Logging of the commands: what our own packages say from INFO on, of others warnings only."""

import logging

OURS = ("jaxgen", "pallas_kernels", "weights")


def set_up_logging(line: str = "%(levelname)s %(name)s: %(message)s") -> None:
    """To standard error, each record as ``line``."""
    logging.basicConfig(level=logging.WARNING, format=line)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)
