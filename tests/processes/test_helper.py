"""A helper process: what it answers, and what ends it."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from jaxgen.core.errors import HelperLostError, RequestRefusedError
from jaxgen.processes import helper as module
from jaxgen.processes.helper import Helper, Target

SECONDS = 60.0
WORK = "tests.support.helper_work:Work"


@pytest.fixture(scope="module")
def helper() -> Iterator[Helper]:
    made = Helper(memory=2**27)
    yield made
    made.close()


@pytest.fixture(scope="module")
def work() -> Target:
    return Target(WORK, lambda: ("a", 1))


def test_a_call_returns_the_value(helper: Helper, work: Target) -> None:
    assert helper.call(work, "given_at_first", seconds=SECONDS) == ["a", 1]
    text = "é\ud800\x00 " + "x" * 2**21
    assert helper.call(work, "echo", text, seconds=SECONDS) == text
    assert helper.call(work, "pid", seconds=SECONDS) == helper.pid != os.getpid()


def test_refusals_and_failures_are_told_apart_and_end_nothing(helper: Helper, work: Target) -> None:
    before = helper.call(work, "pid", seconds=SECONDS)
    with pytest.raises(RequestRefusedError, match="it is not blue") as refused:
        helper.call(work, "refuse", seconds=SECONDS)
    assert refused.value.param == "colour"
    with pytest.raises(RuntimeError, match="KeyError: 'nothing there'"):
        helper.call(work, "fail", seconds=SECONDS)
    assert helper.call(work, "pid", seconds=SECONDS) == before


def test_one_that_was_ended_without_work_is_started_again(helper: Helper, work: Target) -> None:
    before = helper.call(work, "pid", seconds=SECONDS)
    os.kill(before, signal.SIGTERM)  # as a service manager sends to all processes; the parent may drain for long
    assert helper.call(work, "pid", seconds=SECONDS) == before
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert helper.call(work, "pid", seconds=SECONDS) != before


@pytest.mark.parametrize("method", ["power", "sleep"])
def test_what_takes_too_long_is_ended(helper: Helper, work: Target, method: str) -> None:
    """A single operation too, which holds the interpreter."""
    before = helper.call(work, "pid", seconds=SECONDS)
    with pytest.raises(TimeoutError):
        helper.call(work, method, *([1000.0] if method == "sleep" else []), seconds=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert helper.call(work, "pid", seconds=SECONDS) != before


def test_a_busy_machine_takes_no_time_from_it(helper: Helper, work: Target) -> None:
    assert helper.call(work, "sleep", 1.1, seconds=1.0) == "slept"


def test_a_process_ends_itself_where_its_parent_does_not(helper: Helper, work: Target, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "WAITS", 1000)
    with pytest.raises(TimeoutError):
        helper.call(work, "power", seconds=0.1)


def test_what_takes_too_much_memory_fails(helper: Helper, work: Target) -> None:
    assert helper.call(work, "take", 2**26, seconds=SECONDS) == 2**26
    with pytest.raises(MemoryError):
        helper.call(work, "take", 2**28, seconds=SECONDS)
    with pytest.raises(MemoryError):
        helper.call(work, "crash", seconds=SECONDS)
    with pytest.raises(RuntimeError, match="RecursionError"):
        helper.call(work, "recurse", 10**6, seconds=SECONDS)
    assert helper.call(work, "echo", 1, seconds=SECONDS) == 1


@pytest.mark.parametrize("times", [1, 2])
def test_one_that_something_else_ended_is_asked_once_more(
    helper: Helper, work: Target, times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = helper.num_at_limit
    if times == 1:
        assert helper.call(work, "be_killed", str(tmp_path / "mark"), times, seconds=SECONDS) == "xx"
    else:
        with pytest.raises(HelperLostError, match="by signal 9"):
            helper.call(work, "be_killed", str(tmp_path / "mark"), times, seconds=SECONDS)
    assert "by signal 9: another does it again" in caplog.text
    assert helper.num_at_limit == before


def test_one_that_is_stopped_in_its_work_is_no_fault_of_it(helper: Helper, work: Target, monkeypatch: Any) -> None:
    pid = helper.call(work, "pid", seconds=SECONDS)
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)  # of its threads any may have been told first
    monkeypatch.setattr(module, "WAITS", 1)
    with pytest.raises(HelperLostError, match="stopped"):
        helper.call(work, "pid", seconds=0.1)
    assert helper.made == []


def test_none_can_be_started_without_descriptors_or_in_no_time(work: Target, monkeypatch: Any) -> None:
    lost = Helper()
    with monkeypatch.context() as patched:
        patched.setattr(module, "START_SECONDS", 0.0)
        with pytest.raises(HelperLostError, match="does not start"):
            lost.call(work, "pid", seconds=SECONDS)
    assert lost.pid is None
    for call in ("socket.socketpair", "subprocess.Popen"):
        with monkeypatch.context() as patched:
            patched.setattr(f"jaxgen.processes.helper.{call}", Mock(side_effect=OSError(24, "Too many open files")))
            with pytest.raises(HelperLostError, match="Too many open files"):
                lost.call(work, "pid", seconds=SECONDS)


def test_an_object_that_takes_too_long_to_make_is_no_fault_of_the_work(helper: Helper, monkeypatch: Any) -> None:
    helper.start_again([Target(WORK)])
    monkeypatch.setattr(module, "START_SECONDS", 0.01)
    with pytest.raises(HelperLostError, match="time:sleep"):
        helper.call(Target("time:sleep", lambda: (SECONDS,)), "pid", seconds=SECONDS)


def test_a_process_that_keeps_much_is_replaced() -> None:
    helper, work = Helper(), Target(WORK)
    before = helper.call(work, "pid", seconds=SECONDS)
    helper.call(work, "keep", 2**28, seconds=SECONDS)
    assert helper.call(work, "pid", seconds=SECONDS) != before
    assert helper.call(work, "given_at_first", seconds=SECONDS) == []
    helper.close()


def test_objects_are_made_once_and_the_oldest_forgotten(helper: Helper) -> None:
    targets = [Target(WORK, partial(tuple, [i])) for i in range(12)]
    for _ in range(2):
        for i, target in enumerate(targets):
            assert helper.call(target, "given_at_first", seconds=SECONDS) == [i]


def test_it_ends_with_its_parent() -> None:
    program = (
        "from jaxgen.processes.helper import Helper, Target\n"
        f"helper, work = Helper(), Target({WORK!r})\n"
        "print(helper.call(work, 'pid', seconds=60.0), flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    try:
        ended = os.pidfd_open(child)
    except ProcessLookupError:
        return
    assert select.select([ended], [], [], SECONDS)[0]
    os.close(ended)
