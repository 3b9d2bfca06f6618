"""Parse the flags of a command, with errors of one line. Host only, no jax."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import configargparse
import yaml

from jaxgen.core.errors import one_line

_METAVARS = {int: "N", float: "X", Path: "PATH"}


class _Help(argparse.HelpFormatter):
    """Help with the defaults that say something, and with short names of values."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help or "", action.default
        if default in (None, "", argparse.SUPPRESS) or default is False or "default" in text:
            return text
        if action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction):
            return text  # such a flag is on where it is given
        shown = "on" if default is True else "%(default)s"
        return f"{text} (default: {shown})".lstrip()

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kind: Any = action.type
        return _METAVARS.get(kind) or action.dest.rpartition("_")[2].upper()


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Reads an empty document as no keys, and refuses a key that is there twice, of which others take the last."""

    def get_single_data(self) -> Any:
        data = super().get_single_data()
        return {} if data is None else data

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name} is there twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


class _Yaml(configargparse.YAMLConfigFileParser):  # type: ignore[misc]  # configargparse has no types
    """The file of ``--config``. Keys may be written with underscores."""

    parser: "CommandLine"

    def _load_yaml(self) -> tuple[Any, Any, Any]:
        module, _, dumper = super()._load_yaml()
        return module, _Loader, dumper

    def parse(self, stream: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in super().parse(stream).items():
            flag = str(key).removeprefix("--").replace("_", "-")
            if not self.parser.has(f"--{flag}"):
                raise configargparse.ConfigFileParserException(
                    f"{stream.name}: {key} is not a flag{self.parser.hint(f'--{flag}').replace('--', '')}"
                )
            if flag in result:
                raise configargparse.ConfigFileParserException(f"{stream.name}: {flag} is there twice")
            result[flag] = value
        return result


class CommandLine(configargparse.ArgumentParser):  # type: ignore[misc]
    """A parser whose errors are one line that ends the process with 2. It takes ``--max_model_len`` for
    ``--max-model-len``.

    ``bare``: the flag that an argument without a flag sets as well: with "model", ``NAME`` is ``--model NAME``. It
    wins over the environment and the file, as the flag does. It is not an optional argument of argparse, because
    Python 3.12.1 does not find these behind flags.
    """

    def __init__(self, *, allow_abbrev: bool = False, bare: str | None = None, **options: Any) -> None:
        usage = f"%(prog)s [options] [{bare.upper()}]" if bare else None
        super().__init__(
            config_file_parser_class=_Yaml,
            formatter_class=_Help,
            allow_abbrev=allow_abbrev,
            # Each flag's variable next to its help would double it; the description says how they are named.
            add_env_var_help=False,
            add_config_file_help=False,
            **{"usage": usage, **options},
        )
        self._config_file_parser.parser = self
        self._bare = bare
        self._given: list[str] = []

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {one_line(message)} ({self.prog} --help)\n")
        sys.exit(2)

    def parse_args(self, args: Sequence[str] | None = None) -> Any:
        self._given = list(self._dashed(sys.argv[1:] if args is None else args))
        options, unknown = self.parse_known_args(args=self._given)
        if self._bare is not None and unknown and not unknown[0].startswith("-"):
            self._take_bare(options, self._bare, unknown.pop(0))
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self.hint(unknown[0])}")
        return options

    def parse_known_args(self, args: Sequence[str] | None = None, **options: Any) -> Any:
        return super().parse_known_args(args=None if args is None else list(self._dashed(args)), **options)

    def has(self, flag: str) -> bool:
        return flag in self._option_string_actions

    def words(self, name: str, value: str | list[str]) -> list[str]:
        """Return the arguments that set the flag of this name, without dashes, as an entry of a file would."""
        result: list[str] = self.convert_item_to_command_line_arg(self._option_string_actions[f"--{name}"], name, value)
        return result

    def was_given(self, flag: str) -> bool:
        """Whether the last ``parse_args`` found this flag among its arguments, not in the environment or a file."""
        return any(argument.partition("=")[0] == flag for argument in self._given)

    def hint(self, flag: str) -> str:
        """Return which flag may have been meant, as the end of a sentence; empty if none is like it."""
        near = get_close_matches(flag.partition("=")[0], self._option_string_actions, 1)
        return f"; the nearest is {near[0]}" if near else ""

    def _take_bare(self, options: Any, name: str, value: str) -> None:
        flag = f"--{name}"
        other = getattr(options, name)
        if self.was_given(flag) and other != value:
            self.error(f"{name.upper()} {value} and {flag} {other} differ: give one of them")
        setattr(options, name, value)

    def _dashed(self, args: Iterable[str]) -> Iterable[str]:
        for argument in args:
            flag, equals, value = argument.partition("=")
            dashed = flag.replace("_", "-")
            known = flag.startswith("--") and not self.has(flag) and self.has(dashed)
            yield dashed + equals + value if known else argument
