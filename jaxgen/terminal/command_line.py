"""Parse the flags of a command, with errors of one line. Host only, no jax."""

import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

import configargparse

from jaxgen.core.errors import one_line


class _Yaml(configargparse.YAMLConfigFileParser):  # type: ignore[misc]  # configargparse has no types
    """The file of ``--config``. Keys may be written with underscores."""

    parser: "CommandLine"

    def parse(self, stream: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in super().parse(stream).items():
            flag = str(key).removeprefix("--").replace("_", "-")
            if not self.parser.has(f"--{flag}"):
                raise configargparse.ConfigFileParserException(
                    f"{stream.name}: {key} is no flag{self.parser.hint(f'--{flag}').replace('--', '')}"
                )
            if flag in found:
                raise configargparse.ConfigFileParserException(f"{stream.name}: {flag} is there twice")
            found[flag] = value
        return found


class CommandLine(configargparse.ArgumentParser):  # type: ignore[misc]
    """A parser whose errors are one line that ends the process with 2. It takes ``--max_model_len`` for
    ``--max-model-len``."""

    def __init__(self, *, allow_abbrev: bool = False, **options: Any) -> None:
        super().__init__(
            config_file_parser_class=_Yaml,
            formatter_class=configargparse.ArgumentDefaultsHelpFormatter,
            allow_abbrev=allow_abbrev,
            **options,
        )
        self._config_file_parser.parser = self

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {one_line(message)} ({self.prog} --help)\n")
        sys.exit(2)

    def parse_args(self, args: Sequence[str] | None = None) -> Any:
        found, unknown = self.parse_known_args(args=args)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self.hint(unknown[0])}")
        return found

    def parse_known_args(self, args: Sequence[str] | None = None, **options: Any) -> Any:
        return super().parse_known_args(args=None if args is None else list(self._dashed(args)), **options)

    def has(self, flag: str) -> bool:
        return flag in self._option_string_actions

    def hint(self, flag: str) -> str:
        """Return which flag may have been meant, as the end of a sentence; empty if none is like it."""
        near = get_close_matches(flag.partition("=")[0], self._option_string_actions, 1)
        return f"; the nearest is {near[0]}" if near else ""

    def _dashed(self, args: Iterable[str]) -> Iterable[str]:
        for argument in args:
            flag, equals, value = argument.partition("=")
            dashed = flag.replace("_", "-")
            known = flag.startswith("--") and not self.has(flag) and self.has(dashed)
            yield dashed + equals + value if known else argument
