"""Files with a digest, by which what is made of them is named, though they may be replaced while they are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from jaxgen.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DigestedFiles:
    """Files, and the digest that they had before they were read.

    It is their name only if they have it still when they were read: ``check`` then, and before anything is kept or told
    under that name. ``what`` names them in errors; ``take`` returns the digest that they have now.
    """

    what: str
    digest: str
    take: Callable[[], str]

    @classmethod
    def of(cls, what: str, take: Callable[[], str]) -> Self:
        """Return files with the digest that they have now. Raises what ``take`` raises."""
        return cls(what, take(), take)

    def check(self) -> None:
        """Raise ConfigError unless the files have the digest still."""
        try:
            now = self.take()
        except (OSError, ConfigError) as error:  # a file is gone, or no longer of its kind
            raise ConfigError(f"{self._changed} ({error})") from error
        if now != self.digest:
            raise ConfigError(self._changed)

    @property
    def _changed(self) -> str:
        return f"{self.what} changed while being read: start again once all of it is in place"
