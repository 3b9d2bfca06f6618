"""Every request ends in exactly one event, whatever raises where; then nothing is held, and the next one is served."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxgen.engine.engine import Engine
from tests.support.ends import (
    PROBE,
    Caller,
    Client,
    check_idle,
    offloading_engine,
    plain_engine,
    several,
    streaming_engine,
    threaded,
)
from tests.support.engines import run, tokens
from tests.support.injected import Site, Watcher, watcher


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each error is logged with its traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def sites_of(engine: Engine, watching: Watcher, *files: str) -> dict[Site, int]:
    """How often a run passes each place in these files, or in all; a run before it has what happens once only."""
    for _ in range(2):
        watching.begin()
        Caller(engine, watching).serve()
    return {site: count for site, count in watching.counts.items() if not files or site.file.startswith(files)}


def inject(make: Callable[[], Engine], *files: str, every: int, first: int = 0) -> None:
    """Raise at each ``every``-th place from ``first`` on, at about half of the times that it is passed."""
    engine = make()
    answer = tokens(run(engine, [PROBE])["probe"])
    with watcher() as watching:
        sites = sorted(sites_of(engine, watching, *files).items(), key=lambda one: str(one[0]))
        assert len(sites) > 30
        chosen, missed = sites[first::every], 0
        for site, count in chosen:
            watching.begin(site, (count + 1) // 2)
            try:
                Caller(engine, watching).serve()
                check_idle(engine)
                missed += not watching.raised
                assert tokens(run(engine, [PROBE])["probe"]) == answer
                check_idle(engine)
            except Exception as error:
                raise AssertionError(f"after an error at {site}: {error}") from error
    assert missed <= len(chosen) // 3, "which copies come back, and when, depends on times; most does not"


def test_an_error_anywhere_in_the_loop_leaves_each_request_its_end() -> None:
    inject(plain_engine, every=30)


@pytest.mark.full  # the whole of it: a run for each place
@pytest.mark.parametrize("first", range(6))
def test_an_error_at_each_place_of_the_loop(first: int) -> None:
    inject(plain_engine, every=6, first=first)


@pytest.mark.full
def test_an_error_at_each_place_of_offloading() -> None:
    inject(offloading_engine, "offload/", "cache/restorer.py", every=1)


@pytest.mark.full
def test_an_error_at_each_place_of_fetching(tmp_path: Path) -> None:
    inject(lambda: offloading_engine(tmp_path), "offload/tiers/kv_tier/", "cache/restorer.py", every=1)


@pytest.mark.full
@pytest.mark.parametrize("first", range(3))
def test_an_error_at_each_place_of_streaming(first: int) -> None:
    inject(streaming_engine, "layerwise/", every=3, first=first)


OF_THE_THREAD = [f"engine/{name}.py" for name in ("async_engine", "inbox", "anticipation", "messages")]


def inject_into_thread(*, every: int) -> None:
    """At places of the engine's thread outside the engine. An error there ends the thread, or one request."""
    todo = [one for one in several() if one.request_id != "bound"]
    engine = threaded()
    with watcher() as watching:
        watching.begin()
        with watching.watched(engine._thread.ident):
            asyncio.run(Client(engine).serve(todo))
        sites = [(site, count) for site, count in watching.counts.items() if site.file in OF_THE_THREAD]
        assert len(sites) > 15
        died = 0
        for site, count in sorted(sites, key=lambda one: str(one[0]))[::every]:
            watching.begin(site, (count + 1) // 2)
            client = Client(engine)
            with watching.watched(engine._thread.ident):
                asyncio.run(client.serve(todo))
            try:
                asyncio.run(Client(engine).serve([PROBE]))
            except TimeoutError as error:
                raise AssertionError(f"after an error at {site} nobody is served") from error
            if engine.status().state == "dead":
                died += 1
                engine = threaded()
        assert died > 0
    engine.stop()


def test_an_error_in_the_engines_thread_leaves_each_request_its_end() -> None:
    inject_into_thread(every=5)


@pytest.mark.full  # an engine is made for each place
def test_an_error_at_each_place_of_the_engines_thread() -> None:
    inject_into_thread(every=1)
