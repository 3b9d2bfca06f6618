"""Find the configured service class that a request names."""

from collections.abc import Sequence

from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass
from jaxgen.server.errors import bad_request

AUTO = "auto"
"""OpenAI's name for the default class."""


def service_class(tier: str | None, classes: Sequence[ServiceClass]) -> ServiceClass:
    """Return the class that ``service_tier`` names. Raises ApiError 400 where no class has that name."""
    known = {DEFAULT_CLASS.name: DEFAULT_CLASS} | {service.name: service for service in classes}
    name = DEFAULT_CLASS.name if tier in (None, AUTO) else tier
    if name not in known:
        names = ", ".join([AUTO, *known])
        raise bad_request(f"service_tier must be one of {names}, not {str(name)[:100]!r}.", "service_tier")
    return known[name]
