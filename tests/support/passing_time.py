"""Time that passes for an event loop when a test says so."""

import asyncio


def let_pass(seconds: float) -> None:
    """Let all timers of the running event loop that end within so many seconds end now. asyncio's own loop alone."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
