"""Signals to a process that starts, serves or hangs: it ends as it should, and says so in its last line."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.support.server_process import Starting, is_running, starting, until

TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
LONG_CALL = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)'
"""Hours in C without the GIL, as in a compiler: no handler in Python runs meanwhile."""


def program(text: str) -> tuple[str, ...]:
    head = (
        "import asyncio, hashlib, signal, subprocess, sys, time, uvloop\n"
        "from jaxgen.server.commands import signals\n"
        "def say(*words): print(*words, file=sys.stderr, flush=True)\n"
        "watch = signals.watch()\n"
    )
    return ("-c", head + text)


def until_said(process: Starting, word: str) -> None:
    until(lambda: word in process.lines() or process.process.poll() is not None)


@pytest.mark.parametrize("number", [TERM, INT])
def test_a_first_process_can_be_ended_from_its_first_lines_on(number: signal.Signals) -> None:
    with starting(first=True) as server:
        until(lambda: server.handles(TERM))
        assert server.told(number) == 0
        assert server.lines() == [f"jaxgen serve: ended by {number.name} while starting"]


@pytest.mark.full
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.5])
def test_a_signal_soon_after_the_start(seconds: float, first: bool) -> None:
    """Full: what a signal meets is up to the machine. Before there is a handler a first process goes on, and another is
    ended by the system."""
    with starting(first=first) as server:
        time.sleep(seconds)
        handled = server.handles(TERM)
        os.kill(server.pid, TERM)
        until(lambda: server.process.poll() is not None or server.handles(TERM))
        try:
            code = server.process.wait(2)
        except subprocess.TimeoutExpired:
            assert first or handled  # handled: it takes its time
            code = server.told(TERM)
        assert code == 0 or (not first and not handled and code == -TERM)


def test_a_call_that_takes_hours_does_not_hold_it_nor_its_children() -> None:
    text = f'child = subprocess.Popen(["sleep", "1000"])\nsay(child.pid)\nsay("ready")\n{LONG_CALL}'
    with starting(*program(text), serve=False) as process:
        until_said(process, "ready")
        child = int(process.lines()[0])
        assert is_running(child)
        assert process.told(TERM) == 0
        assert process.lines()[2:] == ["jaxgen serve: ended by SIGTERM while starting"]
        assert not is_running(child)


HELD = '"%d" % (10 ** (10 ** 8))'
"""An operation that holds the interpreter for minutes, as a chat template may ask for."""


@pytest.mark.parametrize("first", [False, True])
def test_an_interpreter_that_is_held_does_not_hold_its_end(first: bool) -> None:
    text = f'say("ready")\nfor _ in (1,): {HELD}'
    shorter = "from jaxgen.server.commands import last_resort\nlast_resort.SECONDS = 0.5\n"
    head, *rest = program(text)
    with starting(head, rest[0].replace("def say", f"{shorter}def say"), serve=False, first=first) as process:
        until_said(process, "ready")
        computing = psutil.Process(process.pid)
        since = computing.cpu_times().user
        until(lambda: computing.cpu_times().user > since + 0.05)  # in the operation, for it does nothing else
        assert process.told(TERM) in (-signal.SIGKILL, signal.SIGRTMAX, 128 + signal.SIGKILL)
        assert process.lines()[-1].startswith("jaxgen serve: killed: a signal was not taken note of")


def test_a_hangup_while_starting_is_ignored() -> None:
    with starting(*program(f'say("ready")\n{LONG_CALL}'), serve=False) as process:
        until_said(process, "ready")
        os.kill(process.pid, HUP)
        until_said(process, "jaxgen serve: SIGHUP is ignored while starting")
        assert process.told(INT) == 0


@pytest.mark.parametrize("loop", ["uvloop.new_event_loop", "asyncio.SelectorEventLoop"])
def test_an_event_loop_is_given_signals(loop: str) -> None:
    """Each once, also those that come while it is at work; after it the process ends at once again."""
    text = f"""
async def main():
    loop, got = asyncio.get_running_loop(), asyncio.Queue()
    with watch.delivered(lambda number: loop.call_soon_threadsafe(got.put_nowait, number), 1000):
        say("ready")
        time.sleep(0.2)
        for _ in range(3):
            say(signal.Signals(await got.get()).name)
        assert got.empty()
asyncio.run(main(), loop_factory={loop})
say("over")
{LONG_CALL}
"""
    with starting(*program(text), serve=False) as process:
        until_said(process, "ready")
        for number in (HUP, TERM, INT):
            os.kill(process.pid, number)
            until_said(process, number.name)
        until_said(process, "over")
        last = "jaxgen serve: ended by SIGTERM while ending"
        assert process.told(TERM) == 0
        assert process.lines() == ["ready", "SIGHUP", "SIGTERM", "SIGINT", "over", last]


def test_an_event_loop_that_takes_signals_for_itself_does_not_lose_them() -> None:
    """uvloop has them written to a file descriptor of its own, as long as it runs."""
    text = """
async def main():
    say("ready")
    await asyncio.sleep(1000)
asyncio.run(main(), loop_factory=uvloop.new_event_loop)
"""
    with starting(*program(text), serve=False) as process:
        until_said(process, "ready")
        assert process.told(TERM) == 0
        assert process.lines()[-1] == "jaxgen serve: ended by SIGTERM while starting"


def test_what_hangs_after_a_signal_ends_with_the_stacks_of_threads() -> None:
    text = """
signals.LAST_SECONDS = 0.2
with watch.delivered(lambda number: None, 0.1):
    say("ready")
    time.sleep(1000)
"""
    with starting(*program(text), serve=False) as process:
        until_said(process, "ready")
        assert process.told(TERM) == 1
        assert any('File "<string>", line 9' in line for line in process.lines())


@pytest.mark.full
def test_a_compiler_does_not_outlive_its_server(tmp_path: Path) -> None:
    """Full: a server loads a model. The C++ compiler, here a script that takes forever, ends with it."""
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo g++ 99\necho $$ > "$0.pid"\nexec sleep 1000\n')
    compiler.chmod(0o700)
    note = tmp_path / "bin" / "g++.pid"
    path = f"{compiler.parent}:{Path('/usr/bin')}:/bin"
    with starting("--cache-dir", str(tmp_path / "cache"), environment={"PATH": path}) as server:
        until(lambda: note.is_file() and note.read_text().endswith("\n"))
        child = int(note.read_text())
        assert is_running(child)
        assert server.told(INT) == 0
        assert server.lines()[-1] == "jaxgen serve: ended by SIGINT while starting"
        assert not is_running(child)
