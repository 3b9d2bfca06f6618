"""FastGen's figures of merit of simulated systems, over the number of clients."""

from collections.abc import Iterator, Sequence
from typing import Any

from scripts.simulation.fastgen import Setting, make_policies
from scripts.simulation.load import closed_loop, normal_requests
from scripts.simulation.loop import Simulation, seconds_at

CLIENTS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 64)
REQUESTS = 512
SEED = 42

Point = dict[str, Any]
"""A policy under a load of the given clients."""


def simulate_setting(setting: Setting, clients: Sequence[int] = CLIENTS, requests: int = REQUESTS) -> Iterator[Point]:
    """All policies under all loads."""
    for prompt, output in setting.loads:
        lengths = normal_requests(prompt, output, requests, SEED)
        for number in clients:
            for name, policy in make_policies(setting).items():
                simulation = Simulation(policy, seconds_at(setting.step_time), closed_loop(lengths, number, SEED))
                summary = simulation.run().summary()
                about = {"policy": name, "prompt": prompt, "output": output, "clients": number}
                yield about | {"steps": simulation.num_steps} | _figures(summary)


def _figures(summary: dict[str, Any]) -> Point:
    """Seconds, and rates a second, to four digits."""
    effective = {
        f"{one['sla_tokens_per_s']:g}": {"requests_per_s": one["requests_per_s"], "ok_ratio": one["ok_ratio"]}
        for one in summary["effective"]
    }
    figures = {
        "requests_per_s": summary["requests_per_s"],
        "output_tokens_per_s": summary["output_tokens_per_s"],
        "latency_mean": summary["e2e_s"]["mean"],
        "latency_p95": summary["e2e_s"]["p95"],
        "ttft_p50": summary["ttft_s"]["p50"],
        "ttft_p95": summary["ttft_s"]["p95"],
        **{f"token_{name}": summary["inter_token_s"][name] for name in ("p50", "p90", "p95", "p99")},
        "effective": effective,
    }
    return rounded(figures)


def rounded(value: Any) -> Any:
    """Return figures to four digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}")
