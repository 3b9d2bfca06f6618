"""Find a command by its name, and end it with an exit code and one line, whatever goes wrong."""

import importlib
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

from jaxgen.core.errors import ConfigError, one_line
from jaxgen.server.commands.interrupt import INTERRUPTED, Interrupt, noting_interrupts
from jaxgen.terminal.extras import naming_extras

COMMANDS = {
    "serve": ("jaxgen.server.commands.serve", "serve a model over HTTP"),
    "config": (
        "jaxgen.server.commands.show_config",
        "print what serve would run with, from flags, environment and file",
    ),
    "models": ("jaxgen.server.commands.models", "list the model families, or say what directories and hub ids are"),
    "plan": ("jaxgen.server.commands.plan", "say before loading what fits in a device's memory"),
    "tune": ("jaxgen.server.commands.tune", "measure the token budget of a model on this device"),
    "verify-determinism": (
        "jaxgen.server.commands.verify",
        "show that a request's bits do not depend on its neighbours",
    ),
    "convert-weights": (
        "jaxgen.weights.convert.command",
        "convert a Hugging Face or GGUF checkpoint to jaxgen's own format",
    ),
    "benchmark": ("jaxgen.server.benchmark.command", "measure a server under load"),
}


def dispatch(arguments: Sequence[str]) -> int:
    """Run one command; each has its own parser and is imported only when it runs.

    Returns its exit code: 2 where it cannot run, after one line that says why.
    """
    _leave_deleted_directory()
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("usage: jaxgen COMMAND [options]    (jaxgen COMMAND --help tells the options; jaxgen --version)\n")
        for known, (_, what) in COMMANDS.items():
            print(f"  {known:16} {what}")
        return 0 if arguments else 2
    if name in ("-V", "--version"):
        print(f"jaxgen {version('jaxgen')}")
        return 0
    if name not in COMMANDS:
        print(f"jaxgen: no command {name!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    # serve drains at Ctrl-C, by handlers of its own.
    with nullcontext(Interrupt()) if name == "serve" else noting_interrupts() as interrupt:
        try:
            return _run(name, arguments[1:])
        except KeyboardInterrupt:
            return INTERRUPTED
        except Exception as error:
            if interrupt.came:
                return INTERRUPTED
            if not isinstance(error, ConfigError | OSError | sqlite3.Error):
                raise
            # Libraries say what they have to say before it.
            print(f"jaxgen {name}: {one_line(_reason(error))}", file=sys.stderr)
            return 2


def _leave_deleted_directory() -> None:
    """Work in / where the working directory was deleted: libraries ask for it at their import, or later, and fail."""
    try:
        Path.cwd()
    except FileNotFoundError:
        print("jaxgen: the working directory was deleted; working in / instead", file=sys.stderr)
        os.chdir("/")


def _run(name: str, arguments: Sequence[str]) -> int:
    with naming_extras():
        command: Callable[[Sequence[str]], int | None] = importlib.import_module(COMMANDS[name][0]).main
        return command(arguments) or 0


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        names = [error.filename] if error.filename2 is None else [error.filename, error.filename2]
        return f"{' -> '.join(map(os.fsdecode, names))}: {error.strerror}"
    return str(error) or type(error).__name__
