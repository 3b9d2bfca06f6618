"""The ``jaxgen`` command. A composition root: ``serve`` joins an engine and the HTTP server."""

import importlib
import sys
from collections.abc import Callable, Sequence

from jaxgen.server.commands import signals

COMMANDS = {
    "serve": ("jaxgen.server.commands.serve", "serve a model over HTTP"),
    "config": (
        "jaxgen.server.commands.show_config",
        "print what serve would run with, from flags, environment and file",
    ),
    "tune": ("jaxgen.server.commands.tune", "measure the token budget of a model on this device"),
    "verify-determinism": (
        "jaxgen.server.commands.verify",
        "show that a request's bits do not depend on its neighbours",
    ),
    "convert-weights": ("jaxgen.weights.convert", "convert a Hugging Face checkpoint to jaxgen's own format"),
    "benchmark": ("jaxgen.server.benchmark.command", "measure a server under load"),
}

BENCH_EXTRA = ("aiohttp", "matplotlib")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; each has its own parser and is imported only when it runs."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    if argv is None and name == "serve":
        signals.watch()  # first: imports take seconds, and a signal that nobody handles is lost on PID 1
    if name in ("-h", "--help"):
        print("usage: jaxgen COMMAND [options]    (jaxgen COMMAND --help tells the options)\n")
        for known, (_, what) in COMMANDS.items():
            print(f"  {known:16} {what}")
        return 0 if arguments else 2
    if name not in COMMANDS:
        print(f"jaxgen: no command {name!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        command: Callable[[Sequence[str]], int | None] = importlib.import_module(COMMANDS[name][0]).main
    except ModuleNotFoundError as error:
        if error.name not in BENCH_EXTRA:
            raise
        print(
            f"jaxgen {name}: {error.name} is missing; pip install -e '.[bench]' in the checkout brings it",
            file=sys.stderr,
        )
        return 2
    return command(arguments[1:]) or 0


if __name__ == "__main__":
    sys.exit(main())
