"""The live studies: two pinned replicas, and 1 to 16 processes whose device sleeps."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from jaxgen.server.benchmark.requests import stagger
from jaxgen.text.tokenizer import Tokenizer
from scripts.event_loop.text import MODEL
from scripts.peers.load import OUTPUT_MEAN, PROMPT_MEAN, Window
from scripts.peers.peer import SERVED_NAME
from scripts.scaling.fleet import Process, routed, started
from scripts.scaling.measure import Figures, bodies, figures, measure
from scripts.simulation.fastgen import make_policies
from scripts.simulation.load import ClosedLoop, SimulatedRequest, normal_requests
from scripts.simulation.loop import Fleet, seconds_at
from scripts.simulation.replicas.loads import repeated
from scripts.simulation.replicas.routers import RoundRobin
from scripts.simulation.replicas.study import CLIENTS, OUTPUT, PROMPT, SEED, SETTING

PINNED_CLIENTS = 8
"""Of each replica."""
FIRST, SECOND = "one alone, on core 0", "one alone, on core 1"
OWN: Final = "clients of its own"
DIRECT: Final = "no router, in turn"
ROUTED, VIRTUAL = "SMG", "virtual time"
Say = Callable[[str], None]
Way = Process | Literal["clients of its own", "no router, in turn"]
"""How requests come to servers: by a router, or without one."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A closed loop as so many replicas get it, each request and each client so often. ``num``: requests of one."""

    prompt: int
    output: int
    clients: int
    num: int

    def requests(self, replicas: int) -> list[SimulatedRequest]:
        return repeated(normal_requests(self.prompt, self.output, self.num, SEED), replicas, SEED)

    def delays(self, replicas: int) -> list[float]:
        return [delay for delay in stagger(SEED, self.clients) for _ in range(replicas)]

    def measure(self, servers: Sequence[Process], window: Window, way: Way, tokenizer: Tokenizer, seed: int) -> Figures:
        """Return the figures of the servers, to which requests come that way. ``seed``: another for each, so that no
        prompt is found cached."""
        planned = bodies(self.requests(len(servers)), tokenizer, seed)
        if isinstance(way, Process):
            feeds, router = [[way.url]], {"router": [way]}
        else:
            urls = [one.url for one in servers]
            feeds, router = [urls] if way == DIRECT else [[url] for url in urls], {}
        return measure(feeds, planned, self.delays(len(servers)), window, {"servers": servers} | router)


FASTGEN = Loop(PROMPT, OUTPUT, CLIENTS, 96)
"""That of docs/scale.md's simulation."""
SHORT = Loop(PROMPT_MEAN, OUTPUT_MEAN, PINNED_CLIENTS, 512)
"""That of scripts.peers."""


def pinned(model: Path, smg: Path, logs: Path, window: Window, rounds: int, say: Say) -> list[Figures]:
    """Measure two replicas on a core each: one alone, both with clients of their own, in turn, and behind SMG."""
    command = [sys.executable, "-m", "jaxgen.server.cli", "serve", "--model", str(model)]
    command += ["--tokenizer", str(MODEL), "--served-model-name", SERVED_NAME, "--port"]
    tokenizer = Tokenizer.from_directory(MODEL)
    points: list[dict[str, Any]] = []
    with started([command] * 2, logs, [[0], [1]]) as servers, routed(smg, servers, logs) as router:
        for number in range(rounds):
            ways: list[tuple[str, Sequence[Process], Way]] = [
                (FIRST, servers[:1], OWN),
                (SECOND, servers[1:], OWN),
                (OWN, servers, OWN),
                (DIRECT, servers, DIRECT),
                (ROUTED, servers, router),
            ]
            for name, members, way in ways:
                found = SHORT.measure(members, window, way, tokenizer, SEED + len(points))
                points.append({"round": number, "replicas": len(members), "router": name} | found)
                say(f"pinned, {name}: {found['output_tokens_per_s']:.1f} tokens/s, cores {found['cores']}")
    return points


def sleeping(smg: Path, logs: Path, window: Window, sizes: Sequence[int], say: Say) -> list[Figures]:
    """Measure so many processes whose device sleeps behind SMG, the most also without it, and each in virtual time."""
    command = [sys.executable, "-m", "scripts.scaling.sleeping_server"]
    most = max(sizes)
    tokenizer = Tokenizer.from_directory(MODEL)
    points: list[dict[str, Any]] = []
    with started([command] * most, logs, [None] * most) as servers:
        for replicas in sizes:
            members = servers[:replicas]
            with _ways(smg, members, logs, alone=replicas == most) as ways:
                for name, way in ways:
                    found = FASTGEN.measure(members, window, way, tokenizer, SEED + len(points))
                    points.append({"replicas": replicas, "router": name} | found)
                    say(
                        f"{replicas} sleeping, {name}: {found['requests_per_s']:.2f} requests/s, cores {found['cores']}"
                    )
        resident = max(one.resident_bytes for one in servers)
    return [point | {"resident_bytes": resident} for point in points]


@contextmanager
def _ways(smg: Path, servers: Sequence[Process], logs: Path, *, alone: bool) -> Iterator[list[tuple[str, Way]]]:
    with ExitStack() as stack:
        ways: list[tuple[str, Way]] = [(ROUTED, stack.enter_context(routed(smg, servers, logs)))]
        yield [*ways, (DIRECT, DIRECT)] if alone else ways


def in_virtual_time(window: Window, sizes: Sequence[int]) -> list[Figures]:
    """Return the same figures of the same load and window, simulated behind round robin."""
    return [{"replicas": replicas, "router": VIRTUAL} | _simulated(window, replicas) for replicas in sizes]


def _simulated(window: Window, replicas: int) -> Figures:
    load = ClosedLoop(FASTGEN.requests(replicas), FASTGEN.delays(replicas))
    policies = [make_policies(SETTING)["SplitFuse"] for _ in range(replicas)]
    fleet = Fleet(policies, seconds_at(SETTING.step_time), load, RoundRobin())
    return figures(fleet.run().records, window)
