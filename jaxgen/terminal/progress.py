"""Show how far a long piece of work is: as a bar on a terminal, elsewhere as lines of the log. Host only, no jax."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

logger = logging.getLogger(__name__)

Advance = Callable[[int], object]
"""Called with the units of work that were done; threads may call it."""

LINE_SECONDS = 10.0
BAR_SECONDS = 1.0


@contextmanager
def show_progress(what: str, total: int | None, unit: str, *, bar: bool) -> Iterator[Advance]:
    """Show the progress of the work in the context, ``total`` units of it, and how long it took if it did not fail.

    ``total`` None: how far it is cannot be known.

    ``bar``: whether a bar may be shown, where standard error is a terminal. Both show every few seconds that the work
    continues, even if no unit of it ends.
    """
    # a program that was started without standard error has none here
    shown = bar and sys.stderr is not None and sys.stderr.isatty()
    with _bar(what, total, unit) if shown else _lines(what, total) as advance:
        yield advance


@contextmanager
def _bar(what: str, total: int | None, unit: str) -> Iterator[Advance]:
    from tqdm import tqdm  # here: python -m scripts.gpu runs where it is not installed

    # tqdm shows the time again only when a unit has ended.
    with tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B") as shown, _each(BAR_SECONDS, shown.refresh):
        yield shown.update


@contextmanager
def _lines(what: str, total: int | None) -> Iterator[Advance]:
    begin, done = monotonic(), 0

    def advance(units: int) -> None:
        nonlocal done
        done += units

    def tell() -> None:
        share = "" if total is None else f", {100 * done // max(total, 1)} %"
        logger.info("%s: %.0f s so far%s", what, monotonic() - begin, share)

    with _each(LINE_SECONDS, tell):
        yield advance
    logger.info("%s took %.1f s", what, monotonic() - begin)


@contextmanager
def _each(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Call ``call`` in a thread of its own every few seconds while the context is open."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            call()

    thread = threading.Thread(target=repeat, name="jaxgen-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
