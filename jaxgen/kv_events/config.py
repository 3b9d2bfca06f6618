"""Configure where events of KV blocks are published: the JSON of ``--kv-events-config``. Host only, no jax."""

import json
from dataclasses import dataclass, fields
from typing import Any

from jaxgen.core.errors import ConfigError

FLAG = "--kv-events-config"
SCHEMES = ("tcp://", "ipc://", "inproc://")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """Fields of vLLM's KVEventsConfig, with its defaults. Raises ConfigError that names the key."""

    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    """Of the events; bound if it has ``*``, ``::``, ``ipc`` or ``inproc`` in it, else connected to."""
    replay_endpoint: str | None = None
    """Bound; asked for events that were missed. None: they are not kept."""
    buffer_steps: int = 10_000
    """Batches that are kept for that."""
    hwm: int = 100_000
    """Batches that wait for a slow subscriber; further ones it misses."""
    max_queue_size: int = 100_000
    """Batches that wait for the publisher's thread; further ones are dropped."""
    topic: str = ""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if type(value) is not kind and not (name == "replay_endpoint" and value is None):
                raise ConfigError(f"{FLAG}: {name} must be {_WORDS[kind]}, not {value!r}")
        if self.publisher not in ("zmq", "null"):
            raise ConfigError(f"{FLAG}: publisher must be 'zmq' or 'null', not {self.publisher!r}")
        for name in ("endpoint", "replay_endpoint"):
            value = getattr(self, name)
            if value is not None and not value.startswith(SCHEMES):
                raise ConfigError(f"{FLAG}: {name} must begin with tcp:// or ipc://, as 'tcp://*:5557', not {value!r}")
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{FLAG}: {name} must be 1 or more, not {getattr(self, name)}")

    @property
    def is_on(self) -> bool:
        return self.enable_kv_cache_events and self.publisher == "zmq"


_KINDS = {
    "enable_kv_cache_events": bool,
    "publisher": str,
    "endpoint": str,
    "replay_endpoint": str,
    "buffer_steps": int,
    "hwm": int,
    "max_queue_size": int,
    "topic": str,
}
_WORDS = {bool: "true or false", str: "a string", int: "a number"}


def parse_kv_events(text: str | None) -> KVEventsConfig | None:
    """Return the configuration of a flag's JSON; None: nothing is published. Raises ConfigError."""
    if text is None:
        return None
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{FLAG} is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError(f'{FLAG} must be an object, as {{"endpoint": "tcp://*:5557"}}, not {text!r}')
    known = [known_field.name for known_field in fields(KVEventsConfig)]
    for name in given:
        if name not in known:
            raise ConfigError(f"{FLAG}: unknown key {name!r}; there are {', '.join(known)}")
    config = KVEventsConfig(**given)
    return config if config.is_on else None
