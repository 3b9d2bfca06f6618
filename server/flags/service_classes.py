"""Parse the configured service classes."""

from collections.abc import Sequence

from jaxgen.core.errors import ConfigError
from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass
from jaxgen.server.requests.service_tier import AUTO

_SECONDS = {"ttft": "first_token_seconds", "prompt-rate": "prompt_rate", "inter-token": "inter_token_seconds"}


def parse_class(text: str) -> ServiceClass:
    """Parse ``NAME ttft=SECONDS prompt-rate=TOKENS inter-token=SECONDS late=serve``; only the name is required.

    Raises ConfigError that names the invalid setting.
    """
    name, *settings = text.split() or [""]
    flag = f"--service-class {text!r}"
    if not name or "=" in name or name == AUTO:
        raise ConfigError(f"{flag} must begin with a name other than {AUTO!r}, as in 'fast ttft=0.5'")
    fields: dict[str, float | bool] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if (key, value) in (("late", "serve"), ("late", "refuse")):
            fields["serve_late"] = value == "serve"
        elif key in _SECONDS:
            try:
                fields[_SECONDS[key]] = float(value)
            except ValueError as error:
                raise ConfigError(f"{flag}: {key} must be a number, not {value!r}") from error
        else:
            known = ", ".join(f"{known}=..." for known in _SECONDS)
            raise ConfigError(f"{flag}: {setting!r} is not a valid setting: write {known}, late=serve or late=refuse")
    try:
        return ServiceClass(name=name, **fields)  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error


def parse_classes(texts: Sequence[str], inter_token_target: float | None = None) -> tuple[ServiceClass, ...]:
    """Parse several classes. Raises ConfigError, also for a duplicate name.

    ``inter_token_target``: seconds between tokens in the default class, whose requests are served also where that
    cannot be kept.
    """
    classes = tuple(map(parse_class, texts))
    if inter_token_target is not None:
        flag = f"--inter-token-target {inter_token_target:g}"
        if any(service.name == DEFAULT_CLASS.name for service in classes):
            raise ConfigError(f"{flag} conflicts with --service-class default: write inter-token= in that flag")
        try:
            own = ServiceClass(inter_token_seconds=inter_token_target, serve_late=True)
        except ValueError as error:
            raise ConfigError(f"{flag} must be above 0 and finite") from error
        classes = (*classes, own)
    names = [service.name for service in classes]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"--service-class {min(twice)} is given twice")
    return classes
