"""Work in turns by caller. No process is started: the work only waits for the test."""

from collections.abc import Iterator
from concurrent.futures import Future
from threading import Event

import pytest

from jaxgen.core.errors import HelperLostError, TooCostlyError, TooMuchWaitsError
from jaxgen.processes import helpers as module
from jaxgen.processes.helper import Helper, Target
from jaxgen.processes.helpers import Helpers

SECONDS = 60


class Bench:
    """Works that say when they began, and end when they are told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.helpers = Helpers(most=2, refuses="grammars", clock=lambda: self.now)
        self.order: list[str] = []

    def begin(self, caller: str, name: str) -> tuple[Event, Event, "Future[str]"]:
        began, may_end = Event(), Event()

        def work(_: Helper) -> str:
            self.order.append(name)
            began.set()
            assert may_end.wait(SECONDS)
            return name

        return began, may_end, self.helpers.submit(caller, work)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.helpers.close()


def test_one_of_several_callers_never_has_all(bench: Bench) -> None:
    slow = [bench.begin("b", f"b{i}") for i in range(3)]
    assert slow[0][0].wait(SECONDS)
    _, end, result = bench.begin("a", "a")
    end.set()
    assert result.result(SECONDS) == "a"
    assert bench.order == ["b0", "a"]
    for _, end, result in slow:
        end.set()
        result.result(SECONDS)


def test_callers_take_turns(bench: Bench) -> None:
    holds = [bench.begin(caller, caller) for caller in ("x", "y")]
    for began, _, _ in holds:
        assert began.wait(SECONDS)
    waiting = [bench.begin(caller, f"{caller}{i}") for caller in "ab" for i in range(2)]
    for _, end, _ in [*waiting, *holds]:
        end.set()
    for *_, result in waiting:
        result.result(SECONDS)
    assert bench.order.index("b0") < bench.order.index("a1")


def used(bench: Bench, caller: str, seconds: float) -> None:
    """Let a caller's work take some seconds."""
    began, end, result = bench.begin(caller, f"{caller} long")
    assert began.wait(SECONDS)
    bench.now += seconds
    end.set()
    result.result(SECONDS)
    bench.helpers.submit("", lambda _: None).result(SECONDS)  # so that it has been counted


def test_turns_are_by_time_used(bench: Bench) -> None:
    """One whose work took long waits until all works of the others are done."""
    used(bench, "slow", 1.5)
    holds = [bench.begin(caller, caller) for caller in ("x", "y")]
    assert all(began.wait(SECONDS) for began, _, _ in holds)
    waiting = [bench.begin("slow", "slow")] + [bench.begin("quick", f"quick{i}") for i in range(3)]
    for _, end, _ in [*waiting, *holds]:
        end.set()
    for *_, result in waiting:
        result.result(SECONDS)
    assert bench.order.index("quick2") < bench.order.index("slow")


def test_callers_with_long_works_have_not_all_processes_together(bench: Bench) -> None:
    for caller in "ab":
        used(bench, caller, 10.0)
    (began, end, first), (_, also_end, second) = bench.begin("a", "a"), bench.begin("b", "b")
    assert began.wait(SECONDS)
    _, quick_end, quick = bench.begin("quick", "quick")
    quick_end.set()
    assert quick.result(SECONDS) == "quick"
    assert bench.order[-2:] == ["a", "quick"]
    end.set()
    also_end.set()
    assert (first.result(SECONDS), second.result(SECONDS)) == ("a", "b")


def test_after_some_works_at_their_limits_a_caller_is_refused_for_a_while(bench: Bench) -> None:
    def at_limit(helper: Helper) -> None:
        helper.num_at_limit += 1

    for _ in range(3):
        for caller in ("b", ""):
            bench.helpers.submit(caller, at_limit).result(SECONDS)
        bench.now += 10.0
        bench.helpers.submit("", lambda _: None).result(SECONDS)
    with pytest.raises(TooCostlyError, match=r"3 grammars of yours .* after 50 s") as refused:
        bench.helpers.submit("b", lambda _: None)
    assert refused.value.retry_after == 50.0
    for caller in ("a", ""):
        bench.helpers.submit(caller, lambda _: None).result(SECONDS)
    bench.helpers.submit("b", lambda _: None, cheap=True).result(SECONDS)
    bench.now += 50.0
    bench.helpers.submit("b", lambda _: None).result(SECONDS)


def test_a_process_ended_at_a_limit_is_started_again_before_it_is_needed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, started = Target("nothing:here"), list[list[Target]]()
    monkeypatch.setattr(Helper, "start_again", lambda _, targets: started.append(targets))

    def make(helper: Helper) -> None:
        helper._made[target] = 0

    bench.helpers.submit("a", make).result(SECONDS)
    bench.helpers.submit("a", lambda helper: helper.close()).result(SECONDS)
    bench.helpers.submit("a", lambda _: None).result(SECONDS)
    assert started == [[target]]


def test_without_a_thread_no_work_is_left_waiting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("jaxgen.processes.helpers.threading.Thread", NoThread)
        with pytest.raises(HelperLostError, match="can't start new thread"):
            bench.helpers.submit("a", lambda _: None)
    assert bench.helpers.submit("a", lambda _: "later").result(SECONDS) == "later"


def test_without_callers_both_are_used(bench: Bench) -> None:
    works = [bench.begin("", name) for name in "xy"]
    assert all(began.wait(SECONDS) for began, _, _ in works)
    for _, end, result in works:
        end.set()
        result.result(SECONDS)


def test_what_waits_is_bounded_for_each_caller(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHARACTERS", 10)
    began, end, _ = bench.begin("b", "b")
    assert began.wait(SECONDS)
    kept = [bench.helpers.submit("b", lambda _: None, length) for length in (100,)]
    with pytest.raises(TooMuchWaitsError):
        bench.helpers.submit("b", lambda _: None, 1)
    assert bench.helpers.submit("a", lambda _: "a", 100).result(SECONDS) == "a"
    end.set()
    kept[0].result(SECONDS)


def test_work_whose_caller_has_gone_is_left_out(bench: Bench) -> None:
    began, end, _ = bench.begin("b", "b")
    assert began.wait(SECONDS)
    gone, last = (bench.helpers.submit("b", lambda _: bench.order.append("gone")) for _ in range(2))
    assert gone.cancel()
    end.set()
    last.result(SECONDS)
    assert bench.order == ["b", "gone"]


def test_an_error_is_the_result(bench: Bench) -> None:
    def fails(_: Helper) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        bench.helpers.submit("a", fails).result(SECONDS)
    assert bench.helpers.submit("a", lambda _: 1).result(SECONDS) == 1


def test_what_is_prepared_comes_first_and_others_find_its_process(bench: Bench) -> None:
    may_end, found = Event(), list[Helper]()

    def prepare(helper: Helper) -> None:
        found.append(helper)
        assert may_end.wait(SECONDS)

    works = [bench.helpers.prepare(prepare) for _ in range(2)]
    later = bench.helpers.submit("a", found.append)
    assert not later.done()
    may_end.set()
    for work in works:
        work.result(SECONDS)
    later.result(SECONDS)
    assert len(found) == 3
    assert len(set(map(id, found))) == 1


def test_what_fails_to_be_prepared_holds_nobody_up(bench: Bench) -> None:
    def fail(_: Helper) -> None:
        raise ValueError("not here")

    work = bench.helpers.prepare(fail)
    began, may_end, result = bench.begin("a", "a")
    may_end.set()
    assert began.wait(SECONDS)
    assert result.result(SECONDS) == "a"
    assert isinstance(work.exception(SECONDS), ValueError)
