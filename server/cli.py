"""The ``jaxgen`` command. A composition root: ``serve`` joins an engine and the HTTP server."""

import sys

from jaxgen.server.commands import signals
from jaxgen.terminal.standard_streams import open_standard_streams

TYPE_CHECKING = False  # not from typing, and nothing else is imported up here: see main
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run the command that the arguments name (None: those of the process); return its exit code."""
    open_standard_streams()  # before the pipes of ``signals``, which would have their numbers
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and arguments[:1] == ["serve"]:
        signals.watch()  # first: imports take seconds, and a signal that nobody handles is lost on PID 1
    from jaxgen.server.commands.dispatch import dispatch

    return dispatch(arguments)


if __name__ == "__main__":
    sys.exit(main())
