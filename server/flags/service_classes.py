"""Parse the configured service classes."""

from collections.abc import Sequence

from jaxgen.core.errors import ConfigError
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.requests.service_tier import AUTO

_SECONDS = {"ttft": "first_token_seconds", "prompt-rate": "prompt_rate", "inter-token": "inter_token_seconds"}


def parse_class(text: str) -> ServiceClass:
    """Parse ``NAME ttft=SECONDS prompt-rate=TOKENS inter-token=SECONDS late=serve``; only the name is required.

    Raises ConfigError that names the invalid setting.
    """
    name, *settings = text.split() or [""]
    flag = f"--service-class {text!r}"
    if not name or "=" in name or name == AUTO:
        raise ConfigError(f"{flag} must begin with a name, which may not be {AUTO!r}")
    found: dict[str, float | bool] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if (key, value) in (("late", "serve"), ("late", "refuse")):
            found["serve_late"] = value == "serve"
        elif key in _SECONDS:
            try:
                found[_SECONDS[key]] = float(value)
            except ValueError as error:
                raise ConfigError(f"{flag}: {key} must be a number, not {value!r}") from error
        else:
            known = ", ".join(f"{known}=..." for known in _SECONDS)
            raise ConfigError(f"{flag}: {setting!r} is none of {known}, late=serve, late=refuse")
    try:
        return ServiceClass(name=name, **found)  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error


def parse_classes(texts: Sequence[str]) -> tuple[ServiceClass, ...]:
    """Parse several classes. Raises ConfigError, also for a duplicate name."""
    classes = tuple(map(parse_class, texts))
    names = [one.name for one in classes]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"--service-class {min(twice)} is given twice")
    return classes
