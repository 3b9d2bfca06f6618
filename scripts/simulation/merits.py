"""FastGen's figures of merit of simulated systems: curves over the number of clients, and what is read off them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from scripts.simulation.fastgen import P2600_G60, P2600_G128, Setting, make_policies
from scripts.simulation.load import closed_loop, normal_requests
from scripts.simulation.loop import Simulation, seconds_at

CLIENTS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 64)
REQUESTS = 512
SEED = 42
SLAS = ("2", "4", "6")

Point = dict[str, Any]
"""A policy under a load of so many clients."""


def simulate_setting(setting: Setting, clients: Sequence[int] = CLIENTS, requests: int = REQUESTS) -> Iterator[Point]:
    """All policies under all loads."""
    for prompt, output in setting.loads:
        lengths = normal_requests(prompt, output, requests, SEED)
        for number in clients:
            for name, policy in make_policies(setting).items():
                simulation = Simulation(policy, seconds_at(setting.step_time), closed_loop(lengths, number, SEED))
                found = simulation.run().summary()
                about = {"policy": name, "prompt": prompt, "output": output, "clients": number}
                yield about | {"steps": simulation.num_steps} | _figures(found)


def _figures(found: dict[str, Any]) -> Point:
    """Seconds, and rates a second, to four digits."""
    effective = {
        f"{one['sla_tokens_per_s']:g}": {"requests_per_s": one["requests_per_s"], "ok_ratio": one["ok_ratio"]}
        for one in found["effective"]
    }
    figures = {
        "requests_per_s": found["requests_per_s"],
        "output_tokens_per_s": found["output_tokens_per_s"],
        "latency_mean": found["e2e_s"]["mean"],
        "latency_p95": found["e2e_s"]["p95"],
        "ttft_p50": found["ttft_s"]["p50"],
        "ttft_p95": found["ttft_s"]["p95"],
        **{f"token_{name}": found["inter_token_s"][name] for name in ("p50", "p90", "p95", "p99")},
        "effective": effective,
    }
    return rounded(figures)


def rounded(value: Any) -> Any:
    """Return figures to four digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}")


class Curves:
    """The points of one setting."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points

    @property
    def loads(self) -> list[tuple[int, int]]:
        """(prompt mean, output mean) of each."""
        return list(dict.fromkeys((point["prompt"], point["output"]) for point in self._points))

    def of(self, policy: str, load: tuple[int, int]) -> list[Point]:
        """By number of clients."""
        return [p for p in self._points if p["policy"] == policy and (p["prompt"], p["output"]) == load]

    def at(self, policy: str, load: tuple[int, int], clients: int) -> Point | None:
        """None: not simulated."""
        return next((point for point in self.of(policy, load) if point["clients"] == clients), None)

    def peak(self, policy: str, load: tuple[int, int], sla: str) -> Point:
        """The point with the most effective throughput."""
        return max(self.of(policy, load), key=lambda point: float(point["effective"][sla]["requests_per_s"]))

    def merits(self, policy: str) -> dict[str, float | None]:
        """Those that were published; of prompts of 2,600 and answers of 60 tokens where their names say nothing else.
        None: the curve does not get there, or was not simulated."""
        curve = self.of(policy, P2600_G60)
        at_16 = self.at(policy, P2600_G128, 16)
        at_32 = self.at(policy, P2600_G60, 32)
        found: dict[str, float | None] = {
            "rps_at_9s": crossing(curve, "latency_mean", 9.0, "requests_per_s"),
            "latency_at_1.2rps": crossing(curve, "requests_per_s", 1.2, "latency_mean"),
            "rps_at_32_clients": _figure(at_32, "requests_per_s"),
            "latency_at_32_clients": _figure(at_32, "latency_mean"),
        }
        for sla in SLAS:
            found[f"effective_{sla}"] = self.peak(policy, P2600_G60, sla)["effective"][sla]["requests_per_s"]
        for name in ("token_p50", "token_p90", "token_p95"):
            found[name] = _figure(at_16, name)
        return found


def _figure(point: Point | None, name: str) -> float | None:
    return None if point is None else float(point[name])


def crossing(curve: Sequence[Point], given: str, value: float, wanted: str) -> float | None:
    """``wanted`` where ``given`` first reaches ``value``, by straight lines between points."""
    for one, other in pairwise(curve):
        if one[given] <= value <= other[given] and one[given] < other[given]:
            share = (value - one[given]) / (other[given] - one[given])
            return float(one[wanted] + share * (other[wanted] - one[wanted]))
    return None
