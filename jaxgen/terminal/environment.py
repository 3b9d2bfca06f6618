"""Check environment variables that set flags: a misspelt variable is an error, as a misspelt flag is."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from jaxgen.terminal.command_line import CommandLine

PREFIX = "JAXGEN_"

OTHERS = frozenset(
    f"{PREFIX}{name}"
    for name in ("BUDGETS", "CONTEXT", "DEVICE_MEMORY", "JSON", "PLOT", "PYTHON", "REQUESTS", "ROUNDS")
)
"""Variables of scripts/serve (PYTHON) and of other commands' flags."""

_OF_KUBERNETES = re.compile(rf"{PREFIX}(.*_)?(SERVICE_HOST|SERVICE_PORT.*|PORT(_\d+_.*)?)")
"""Variables that Kubernetes sets in pods for services whose names begin with jaxgen."""


def check_environment(parser: CommandLine, environment: Iterable[str]) -> None:
    """End the process, as a wrong flag does, where a variable with PREFIX sets none of ``parser``'s flags.

    Call it after parsing: only then do flags have their variables.
    """
    options = {option: action.env_var for action in parser._actions for option in action.option_strings}
    known = {name for name in options.values() if name is not None}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known | OTHERS and not _OF_KUBERNETES.fullmatch(name):
            option = "--" + name.removeprefix(PREFIX).lower().replace("_", "-")
            near = [option] if option in options else get_close_matches(option, options, 1)
            hint = "".join(f"; {options[name]} does" for name in near if options[name])
            parser.error(f"the environment variable {name} sets no flag{hint}")
