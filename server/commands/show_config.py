"""``jaxgen config``: print the flags with which ``jaxgen serve`` would run, as a file for its ``--config``."""

import os
from collections.abc import Sequence
from typing import Any

import yaml

from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.flags.server_flags import server_config
from jaxgen.terminal.command_line import CommandLine
from jaxgen.terminal.environment import check_environment
from jaxgen.terminal.urls import without_password

SECRETS = {"api-key", "kv-tier-password", "kv-tier-key", "stream-secret"}
"""Flags whose values are never shown; of URLs in others, users and passwords are not."""


def main(argv: Sequence[str]) -> int:
    """Print YAML with every flag that has a value, from any source; Secrets are shown as ``***``.

    Raises ConfigError.
    """
    parser = make_parser("config")
    args = parser.parse_args(argv)
    check_environment(parser, os.environ)
    server_config(args)
    print(yaml.safe_dump(resolved(parser, args), sort_keys=False), end="")
    return 0


def resolved(parser: CommandLine, args: Any) -> dict[str, Any]:
    """Return values by flag, without its dashes, in the order of the help."""
    result = {}
    for action in parser._actions:
        name = action.option_strings[0].removeprefix("--")
        if action.dest in ("help", "config"):
            continue
        value = getattr(args, action.dest)
        if name.startswith("no-"):  # such a flag is set when its value is False
            value = not value
        if value is not None:
            result[name] = _plain(name, value)
    return result


def _plain(name: str, value: Any) -> Any:
    if name in SECRETS:
        return ["***"] * len(value) if isinstance(value, list) else "***"
    if isinstance(value, list):
        return [without_password(str(item)) for item in value]
    return value if isinstance(value, bool | int | float) else without_password(str(value))
