"""The inbox by hand, with the work of no engine."""

from collections import deque
from typing import Any

import pytest

from jaxgen.core.errors import EngineDeadError
from jaxgen.engine.inbox import MOST_MESSAGES, Inbox
from jaxgen.engine.messages import Abort, Ask


class Work:
    """What an engine says of its work."""

    has_work = True
    held_for = 0.0
    runs_ahead = True


MESSAGE: Any = object()


def test_a_burst_is_taken_a_few_messages_at_a_time() -> None:
    inbox, taken = Inbox(), deque[Any]()
    for _ in range(MOST_MESSAGES + 1):
        inbox.put(MESSAGE)
    assert inbox.take(Work(), taken)
    assert len(taken) == MOST_MESSAGES
    assert inbox.empty() == [MESSAGE]


def test_held_work_is_waited_for_and_then_goes_on() -> None:
    asked: list[float] = []

    class Held(Work):
        @property
        def held_for(self) -> float:  # type: ignore[override]
            asked.append(0.001 if len(asked) < 3 else 0.0)
            return asked[-1]

    assert Inbox().take(Held(), deque())
    assert asked[-1] == 0.0


def test_a_closed_inbox_takes_aborts_alone_and_tells_why_first() -> None:
    inbox = Inbox()
    inbox.close("the device is lost")
    inbox.close()
    inbox.put(Abort(MESSAGE))
    with pytest.raises(EngineDeadError, match="the device is lost"):
        inbox.put(Ask(MESSAGE, MESSAGE))
    assert not inbox.take(Work(), deque())
    assert inbox.empty() == []
