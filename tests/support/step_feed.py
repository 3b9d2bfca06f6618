"""A reader of the step feed, over HTTP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

type FeedEvent = tuple[str, dict[str, Any]]


def events_in(lines: Iterator[str]) -> Iterator[FeedEvent]:
    """The name and data of each event."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@contextmanager
def reading(url: str, key: str = "") -> Iterator[Iterator[FeedEvent]]:
    """The events of a stream that is closed at the end."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx2.stream("GET", f"{url}/steps", headers=headers, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events_in(answer.iter_lines())


def next_of(events: Iterator[FeedEvent], name: str) -> dict[str, Any]:
    """The next event of this name."""
    return next(data for found, data in events if found == name)
