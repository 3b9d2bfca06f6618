"""A device under closed loops of clients: its steps cost what result files measured, or what is expected of them.

Without the attention of its decodes a step takes the time of its width where padding is computed, and that of its
tokens where kernels skip padding. Each token in the context of a decode adds the time of reading its K and V. Each
sampled token adds the host's time to deliver it, which one measured load tells.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.start.step_time_probe import prompt_lengths
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.prefill_limits import GPU_LIMITS
from jaxgen.scheduling.step_time import StepTimeEstimator, StepTimeModel
from scripts.simulation.load import closed_loop, normal_requests
from scripts.simulation.loop import Simulation
from scripts.simulation.merits import SEED, rounded
from scripts.simulation.policies import SplitFuse

CLIENTS = {1: 4, 16: 32, 64: 128, 256: 512}
"""Requests by clients, those of the rows ``server_llama3_8b_*``."""
PROMPT, OUTPUT = 512, 128
BLOCK_SIZE, MAX_MODEL_LEN, MAX_NUM_SEQS = 64, 2048, 256
SHAPE, MEASURED_BUDGET = "llama3_8b", 256
"""The model and the width that the result files have servers of."""
FITTED_CLIENTS = 64
"""The load whose measured duration tells the host's time for a token."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Device:
    """What steps take. ``base``: (tokens of a step, seconds without the attention of decodes), by tokens.

    ``pads``: a step computes ``token_budget`` tokens, whatever it has. ``admission``: seconds that a step takes longer
    because rows are loaded before it. ``delivery``: seconds that it takes longer for each token that it samples.
    """

    token_budget: int
    base: tuple[tuple[int, float], ...]
    per_context: float
    pads: bool
    admission: float = 0.0
    delivery: float = 0.0

    def base_seconds(self, tokens: int) -> float:
        """Return the seconds of a step of ``tokens`` tokens without context, between the points of ``base``."""
        if tokens <= self.base[0][0]:
            return self.base[0][1]
        for (less, low), (more, high) in pairwise(self.base):
            if tokens <= more:
                return low + (high - low) * (tokens - less) / (more - less)
        raise ValueError(f"a step of {tokens} tokens is beyond the largest with a known time, {self.base[-1][0]}")

    def seconds(self, plan: StepPlan) -> float:
        """Return what the step of a plan takes."""
        tokens = self.token_budget if self.pads else plan.num_tokens
        host = plan.num_samples * self.delivery + (self.admission if plan.admitted else 0.0)
        return self.base_seconds(tokens) + plan.num_contexts * self.per_context + host

    @property
    def step_time(self) -> StepTimeModel | None:
        """What the scheduler knows of its steps, as a start would measure them; None: they all cost the same."""
        if self.pads:
            return None
        decodes = {1, min(MAX_NUM_SEQS, self.token_budget)}
        steps = [(tokens, 0) for tokens in (*prompt_lengths(self.token_budget), *decodes)] + [(1, MAX_MODEL_LEN)]
        known = [
            StepSample(tokens, 0, self.base_seconds(tokens) + context * self.per_context, context)
            for tokens, context in steps
        ]
        return StepTimeEstimator(self.token_budget, known, floored=True).model


def read_rows(files: Iterable[Path]) -> dict[str, Row]:
    """Return the rows that ran, by name, each of the first file in which it did. Raises ValueError for other files."""
    rows: dict[str, Row] = {}
    for path in files:
        try:
            of_file = json.loads(path.read_text())["rows"]
            ran = {row["name"]: row for row in of_file if row["state"] == "ran"}
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is not a result file of scripts.gpu: {error!r}") from error
        rows = ran | rows
    return rows


def measured_device(rows: dict[str, Row], model: ModelConfig, token_budget: int) -> Device:
    """Return the device that was measured, whose steps all cost what one of ``token_budget`` tokens did.

    Raises ValueError if a row that this needs did not run.
    """
    step, host = _row(rows, f"step_{SHAPE}_{token_budget}"), rows.get(f"host_step_{SHAPE}_{token_budget}_full")
    per_context = context_seconds(rows, model)
    of_decodes = step["detail"]["decode_rows"] * step["detail"]["context"] * per_context
    seconds = step["detail"]["overlapped_seconds"]
    admission = max(0.0, host["seconds"] - seconds) if host is not None else 0.0
    return Device(token_budget, ((token_budget, seconds - of_decodes),), per_context, pads=True, admission=admission)


def with_delivery(device: Device, rows: dict[str, Row]) -> Device:
    """Return the measured device with the host's time for a token, which makes one load take as long as measured."""
    measured, simulated = (
        _row(rows, f"server_{SHAPE}_{FITTED_CLIENTS}_clients")["detail"],
        serve(device, FITTED_CLIENTS),
    )
    longer = measured["duration_s"] - measured["output_tokens"] / simulated["output_tokens_per_s"]
    return replace(device, delivery=max(0.0, longer) / measured["output_tokens"])


def context_seconds(rows: dict[str, Row], model: ModelConfig) -> float:
    """Return the seconds that a decode takes longer for a token in its context, at the measured rate of reading."""
    row = _row(rows, "decode_attention_256x2k_gqa")
    return CacheFormat.of(model, 1).kv_bytes * row["seconds"] / row["bytes"]


def _row(rows: dict[str, Row], name: str) -> Row:
    if name not in rows:
        raise ValueError(f"the files have no row {name} that ran")
    return rows[name]


def serve(device: Device, clients: int) -> Row:
    """Return the figures of a closed loop on a device."""
    scheduler = SchedulerConfig(device.token_budget, MAX_NUM_SEQS, MAX_MODEL_LEN)
    cache = CacheConfig(BLOCK_SIZE, MAX_NUM_SEQS * MAX_MODEL_LEN // BLOCK_SIZE)
    policy = SplitFuse(scheduler, cache, step_time=device.step_time, limits=GPU_LIMITS)
    load = closed_loop(normal_requests(PROMPT, OUTPUT, CLIENTS[clients], SEED), clients, SEED)
    simulation = Simulation(policy, device.seconds, load)
    summary = simulation.run().summary()
    figures = {
        "output_tokens_per_s": summary["output_tokens_per_s"],
        "requests_per_s": summary["requests_per_s"],
        "ttft_p50": summary["ttft_s"]["p50"],
        "ttft_p95": summary["ttft_s"]["p95"],
        "inter_token_p50": summary["inter_token_s"]["p50"],
        "inter_token_p95": summary["inter_token_s"]["p95"],
    }
    return {"clients": clients, "steps": simulation.num_steps} | rounded(figures)


def simulate_device(
    files: Sequence[Path], model: ModelConfig, budget: int, expected: Sequence[tuple[int, float]] = ()
) -> Iterator[Row]:
    """Yield the figures of each load on a device of ``budget`` tokens whose steps were measured.

    Or on one of kernels that skip padding, whose steps are ``expected`` to take this: (tokens, seconds without the
    attention of decodes). All else is as measured. The measured server's width has the error against it.
    """
    rows = read_rows(files)
    served = with_delivery(measured_device(rows, model, MEASURED_BUDGET), rows)
    if expected:
        device = replace(served, token_budget=budget, base=tuple(sorted(expected)), pads=False)
    else:
        device = replace(measured_device(rows, model, budget), delivery=served.delivery)
    for clients in CLIENTS:
        point = serve(device, clients)
        against = _against(rows, point) if device == served else {}
        yield {"token_budget": budget, "pads": device.pads} | point | against


def _against(rows: dict[str, Row], point: Row) -> Row:
    """Return the measured output tokens/s of as many clients, and the error of the simulated ones."""
    measured = _row(rows, f"server_{SHAPE}_{point['clients']}_clients")["detail"]["output_tokens_per_s"]
    return rounded({"measured": measured, "error": point["output_tokens_per_s"] / measured - 1.0})
