"""The seconds that a run takes at most, as a table, before it begins."""

from collections.abc import Sequence

from scripts.gpu.peer.loads import Load
from scripts.gpu.peer.run import STOP_SECONDS
from scripts.gpu.peer.servers import Server

CALL_SECONDS, ALL_SECONDS = 570.0, 900.0
"""A call ends after the first number in any case. All calls together are to fit into the second one."""


def turn_seconds(server: Server, loads: Sequence[Load]) -> float:
    """Return the most seconds of one turn of a server whose first attempt is ready."""
    return _start(server) + sum(load.most_seconds for load in loads) + STOP_SECONDS


def plan(servers: Sequence[Server], loads: Sequence[Load], rounds: int, seconds: float) -> str:
    """Return the sum for the first round, and what the limits of the call add to it. ``loads``: with the warm-up."""
    lines = ["seconds at most:"]
    for server in servers:
        parts = [("start", _start(server)), *((load.name, load.most_seconds) for load in loads), ("stop", STOP_SECONDS)]
        lines.append(f"  {server.name}: {' + '.join(f'{name} {most:.0f}' for name, most in parts)}")
        lines[-1] += f" = {turn_seconds(server, loads):.0f}"
    first = sum(turn_seconds(server, loads) for server in servers)
    verdict = "fits into" if first <= seconds else "may not fit into"
    lines.append(f"  one round: {first:.0f}, which {verdict} this call's {seconds:.0f}")
    for server in servers:
        if others := server.attempts[1:]:
            tried = ", ".join(f"{one.name} {one.seconds:.0f}" for one in others)
            lines.append(f"  {server.name}, if it is not ready: {tried}, as far as there is time")
    if rounds > 1:
        lines.append(f"  further rounds, {rounds} in all: a turn begins if the server's last turn would fit")
    rest = ALL_SECONDS - seconds
    lines.append(f"  this call {seconds:.0f}, and a second one with --seconds {rest:.0f}: {ALL_SECONDS:.0f} in all")
    return "\n".join(lines)


def _start(server: Server) -> float:
    return server.attempts[0].seconds if server.attempts else 0.0
