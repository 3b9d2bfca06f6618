"""SMG in front of two replicas: where it sends what, and what callers see when one is killed, drains or comes back.

The last two tests each end a replica and need both, so one of them shows that a replica that is back gets requests.
"""

import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from threading import Thread

import pytest

from tests.clients.conftest import MODEL, post
from tests.clients.fleet import SECONDS, Fleet, Replica, Stream, begin, join, until

pytestmark = pytest.mark.clients
LONG = 600
"""Tokens of streams that must still go on when something happens to their replica."""


@pytest.fixture(scope="module")
def routed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    python = request.config.getoption("--server-python")
    made = Fleet([Replica(python), Replica(python)])
    for replica in made.replicas:
        replica.start()
    router: subprocess.Popen[bytes] | None = None
    try:
        for replica in made.replicas:
            replica.wait()
        router = made.start_router(tmp_path_factory.mktemp("smg") / "log")
        yield made
    finally:
        if router is not None:
            router.kill()
            router.wait(SECONDS)
        for replica in made.replicas:
            replica.send(signal.SIGKILL)
            replica.ended()


@pytest.fixture
def fleet(routed: Fleet) -> Fleet:
    routed.make_whole()
    return routed


def load(fleet: Fleet, num_tokens: int, first: str = "") -> list[Stream]:
    """Prompts that share nothing but what they begin with; the router drops the header by which streams go on."""
    return [Stream(fleet, f"{first}{10**index} is {index}", num_tokens, by_header=False) for index in range(8)]


def all_begun(streams: list[Stream]) -> bool:
    return all(stream.begun for stream in streams)


def test_answers_are_those_of_a_replica(fleet: Fleet) -> None:
    fields = {"prompt": "def main():", "max_tokens": 8, "temperature": 0}
    routed, _ = fleet.ask("/v1/completions", **fields)
    for replica in fleet.replicas:
        assert routed["choices"] == post(f"{replica.url}/v1/completions", {"model": MODEL, **fields})["choices"]
    chat, _ = fleet.ask("/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
    assert chat["usage"]["completion_tokens"] <= 4
    assert fleet.ask("/v1/embeddings", input="Hello")[0]["data"][0]["embedding"]


def test_prompts_go_where_their_beginning_is_cached(fleet: Fleet) -> None:
    for subject in ("def parse(", "class Tree:", "import sys"):
        prompts = [f"{subject}\n    pass\n" * 20 + f"# {turn}" for turn in range(4)]
        found = [fleet.ask("/v1/completions", prompt=prompt, max_tokens=1) for prompt in prompts]
        assert len({url for _, url in found}) == 1
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer, _ in found]
        assert cached[0] < min(cached[1:])


def test_of_a_replica_that_is_killed_only_its_own_streams_end_and_go_on_elsewhere(fleet: Fleet) -> None:
    unbroken = load(fleet, LONG)
    join(begin(unbroken))
    assert all(stream.whole for stream in unbroken)
    streams = load(fleet, LONG)
    threads = begin(streams)
    until(partial(all_begun, streams), "not all streams have begun")
    victim, survivor = fleet.replicas
    assert {stream.url for stream in streams} == {victim.url, survivor.url}
    assert victim.metric("num_requests_running") > 0
    victim.send(signal.SIGKILL)
    assert victim.ended() == -signal.SIGKILL
    after = [fleet.ask("/v1/completions", prompt=f"after {index}", max_tokens=4) for index in range(6)]
    join(threads)
    for stream, other in zip(streams, unbroken, strict=True):
        assert stream.whole == (stream.url == survivor.url)
        assert stream.text == other.text if stream.whole else other.text.startswith(stream.text)
    assert {url for _, url in after} == {survivor.url}
    broken = [stream for stream in streams if not stream.whole]
    join(begin(broken))
    assert {stream.url for stream in broken} == {survivor.url}
    assert [stream.text for stream in streams] == [stream.text for stream in unbroken]
    until(lambda: fleet.healthy() == {survivor.url}, "the router still uses the replica that is dead")


def test_a_replica_that_drains_costs_no_request(fleet: Fleet) -> None:
    drained, other = fleet.replicas
    streams, threads = list[Stream](), list[Thread]()
    # The router remembers who had the prompts of earlier tests. What is new to it goes to who had less.
    for first in "abcdef":
        more = load(fleet, LONG, first)
        threads += begin(more)
        until(partial(all_begun, more), "not all streams have begun")
        streams += more
        if len({stream.url for stream in streams}) == 2:
            break
    assert {stream.url for stream in streams} == {drained.url, other.url}
    assert drained.metric("num_requests_running") > 0
    later = load(fleet, 20)
    drained.send(signal.SIGTERM)
    threads += begin(later)
    join(threads)
    assert [(stream.status, stream.whole) for stream in streams + later] == [(200, True)] * (len(streams) + len(later))
    assert drained.ended() == 0
    until(lambda: fleet.healthy() == {other.url}, "the router still uses the replica that has ended")
