"""Count XLA compilations of this process, so that "no recompile after ready" can be a metric and a test."""

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_durations: list[float] = []


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _EVENT:
        _durations.append(duration_secs)


jax.monitoring.register_event_duration_secs_listener(_listen)


def num_compilations() -> int:
    """Return the number of programs compiled, or read from the persistent cache, since the import of this module."""
    return len(_durations)
