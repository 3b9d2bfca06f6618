"""Typed access to the fields of config.json, which remembers what was read. Host only, no jax."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxgen.core.errors import ConfigError

REQUIRED: Any = object()
"""In place of a default: the field has none."""

MOST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "block_count"), 4096),
    **dict.fromkeys(("num_experts", "num_local_experts", "expert_count"), 4096),
}
"""Largest values of fields that say how many tensors there are: more would take gigabytes before a file is read."""


def text_part(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what config.json says of the text in a model of more than text; None: it has no part for it."""
    return next((part for name in ("text_config", "llm_config") if isinstance(part := data.get(name), Mapping)), None)


@dataclass(frozen=True, slots=True)
class JsonFields:
    """The fields of one JSON object, from which families, encodings and GGUF files are read.

    Raises ConfigError that names the field and the file.
    """

    data: Mapping[str, Any]
    source: str
    used: set[str] = field(default_factory=set)
    """Names of the fields that were asked for."""

    def error(self, name: str, message: str) -> ConfigError:
        return ConfigError(f"{self.source}: {name} {message}")

    def get(self, name: str) -> Any:
        """Return the value as it is, or None."""
        self.used.add(name)
        return self.data.get(name)

    def ignore(self, *names: str) -> None:
        """Take note of fields that change nothing here."""
        self.used.update(names)

    def below(self, name: str, data: Mapping[str, Any]) -> "JsonFields":
        """Return the fields of an object that is the value of ``name``."""
        self.used.add(name)
        return JsonFields(data, f"{self.source}: {name}")

    def _get(self, name: str, default: Any, types: tuple[type, ...], wanted: str) -> Any:
        self.used.add(name)
        value = self.data.get(name, default)
        if value is REQUIRED:
            raise self.error(name, f"is missing; it must be {wanted}")
        # bool is a subclass of int, but true is not a valid size
        if value is not default and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            raise self.error(name, f"must be {wanted}, not {value!r}")
        return value

    def size(self, name: str, default: int = REQUIRED) -> int:
        value: int = self._get(name, default, (int,), "a positive integer")
        if value < 1:
            raise self.error(name, f"must be a positive integer, not {value}")
        if value > MOST.get(name, value):
            raise self.error(name, f"must be at most {MOST[name]}, which is more than any model has")
        return value

    def size_or_null(self, name: str, default: int | None = None) -> int | None:
        self.used.add(name)
        if self.data.get(name, default) is None:
            return None
        return self.size(name, REQUIRED if default is None else default)

    def count(self, name: str, default: int) -> int:
        """Return an integer of 0 or more; null is the default."""
        wanted = "an integer of 0 or more"
        value: int = default if self.get(name) is None else self._get(name, default, (int,), wanted)
        if value < 0:
            raise self.error(name, f"must be {wanted}, not {value}")
        return value

    def positive(self, name: str, default: float = REQUIRED) -> float:
        value = float(self._get(name, default, (int, float), "a positive number"))
        if not 0 < value < float("inf"):
            raise self.error(name, f"must be a positive number, not {value}")
        return value

    def positive_or_null(self, name: str) -> float | None:
        self.used.add(name)
        return None if self.data.get(name) is None else self.positive(name)

    def boolean(self, name: str, default: bool) -> bool:
        """Return whether it is on; null is off, as in transformers."""
        if self.get(name) is None and name in self.data:
            return False
        return bool(self._get(name, default, (bool,), "true or false"))

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = str(self._get(name, default, (str,), " or ".join(choices)))
        if value not in choices:
            raise self.error(name, f"is {value!r}; supported: {', '.join(choices)}")
        return value

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """Return a list of ``count`` positive numbers."""
        values = self._get(name, REQUIRED, (list,), f"a list of {count} positive numbers")
        right = all(isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < float("inf") for x in values)
        if len(values) != count or not right:
            raise self.error(name, f"must be a list of {count} positive numbers, not {values!r:.80}")
        return tuple(map(float, values))

    def by_layer(
        self, name: str, num_layers: int, wanted: str, is_right: Callable[[Any], bool]
    ) -> tuple[Any, ...] | None:
        """Return a list with an entry for each layer, or None if there is none."""
        values = self.get(name)
        if values is None:
            return None
        if not isinstance(values, list) or not all(map(is_right, values)):
            raise self.error(name, f"must be a list of {wanted}, not {values!r:.120}")
        if len(values) != num_layers:
            raise self.error(name, f"has {len(values)} entries, but num_hidden_layers is {num_layers}")
        return tuple(values)

    def must_be(self, name: str, value: Any, why: str = "") -> None:
        """Refuse any value but this one, and null."""
        found = self.get(name)
        if found is not None and found != value:
            raise self.error(name, f"{found!r} is not supported, only {value!r}{why and ': ' + why}")
