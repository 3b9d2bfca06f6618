"""The paper's tables, and what each part of the scheme is worth: the cases of each part."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import psutil

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.kernels.choice import Kernels
from jaxgen.layerwise.rates import StreamRates, transfer_all
from scripts.offload.bench import Bench, Mode, kernels_here
from scripts.offload.column_bench import ColumnBench
from scripts.offload.modes import Modes, Results, compare, half_of, modes_of, only
from scripts.offload.restore import BLOCK_SIZE, Measurement, build, halved, measure, restore_links
from scripts.offload.settings import PROJECTION_PART, Setting, projection_part
from scripts.offload.smoke import compared, scaled_link

HOST_PART = 0.8
"""Of the host's free memory, what a case may take."""


@dataclass(frozen=True)
class Case:
    """A row to be measured. ``name``: what tells it from the others of its part, in the row too."""

    name: dict[str, Any]
    measure: Callable[[], Results]


class Parts:
    """One model's benches, made when a part needs them, and the link of those parts that have but one."""

    def __init__(self, setting: Setting, kernels: Kernels, repeats: int) -> None:
        self.setting, self.repeats, self._kernels = setting, repeats, kernels
        self._rates = cache(self._rates_at)
        self._measurement = cache(self._measurement_of)

    @cached_property
    def bench(self) -> Bench:
        return Bench(self.setting, self._kernels)

    @cached_property
    def columns(self) -> ColumnBench:
        return ColumnBench(self.setting, self._kernels)

    @cached_property
    def unscaled(self) -> float:
        """Bytes a second of the link on which projecting takes as long as transferring."""
        return scaled_link(self.bench, 1.0)

    @property
    def link(self) -> float | None:
        """Of the parts that have but one; None: the machine's own."""
        return PROJECTION_PART * self.unscaled if self.setting.scaled else None

    def at(self, link: float | None) -> StreamRates:
        """Sets the link, and says what calibration found with it."""
        rates = self._rates(link)
        self.bench.set_link(link)
        return rates

    def latency(self) -> Iterator[Case]:
        """Weights resident, KV on the host: full, overlapped, fixed and planned, for each prompt and length."""
        for prompt in self.setting.prompts:
            for length in self.setting.generate:
                name = {"prompt": prompt, "generate": length}
                yield Case(name, partial(self._latency, prompt, length))

    def throughput(self) -> Iterator[Case]:
        """Columns, with weights on the host too."""
        for prompt in self.setting.column_prompts:
            yield Case({"prompt": prompt}, partial(self._throughput, prompt))

    def ablation(self) -> Iterator[Case]:
        """Planned, and the same without one part of the scheme; a latency and a throughput row."""
        for batch in dict.fromkeys((self.setting.batch, self.setting.larger_batch)):
            yield Case({"batch": batch}, partial(self._ablation, batch))

    def links(self) -> Iterator[Case]:
        """Planned against overlapped over links of the paper's speeds, and, on a GPU, its own."""
        own = () if self.setting.scaled else (None,)
        for paper in (*self.setting.links, *own):
            yield Case({"papers_link": paper}, partial(self._links, paper))

    def restore(self) -> Iterator[Case]:
        """A context that comes back to a model with as many KV heads as heads, and to one with fewer."""
        scaled = self.setting.scaled
        for model in self.setting.restored:
            kind = "GQA" if model.num_kv_heads < model.num_heads else "MHA"
            for speed in restore_links(scaled=scaled):
                yield Case({"model": kind, "speed": speed}, partial(self._restore, model, speed))
            if scaled:
                yield Case({"model": kind, "speed": "halved"}, partial(self._halved, model))

    def _latency(self, prompt: int, length: int) -> Results:
        rates = self.at(self.link)
        return self._compared(rates, (prompt, length, self.setting.batch), modes_of(self.bench, rates))

    def _ablation(self, batch: int) -> Results:
        rates = self.at(self.link)
        planned = modes_of(self.bench, rates)["planned"]
        modes = {
            "planned": planned,
            "planner off": replace(planned, split=half_of(self.bench.chunk)),
            "scheduler off": replace(planned, overlap=False),
            "runtime off": replace(planned, buffers=1, pinned=False),
            "all off": Mode(transfer_all, overlap=False, pinned=False),
        }
        return self._compared(rates, (self.setting.prompts[0], self.setting.generate[0], batch), modes, base="all off")

    def _links(self, paper: float | None) -> Results:
        setting = self.setting
        rates = self.at(self.unscaled * projection_part(paper) if setting.scaled and paper is not None else paper)
        modes = only(modes_of(self.bench, rates), "overlapped", "planned")
        return self._compared(rates, (setting.prompts[0], setting.generate[0], setting.batch), modes)

    def _throughput(self, prompt: int) -> Results:
        columns, setting, bench = self.columns, self.columns.setting, self.columns.bench
        length = setting.column_steps
        about: Results = {"generate": length, "batch": setting.batch, "columns": setting.columns}
        needs, free = setting.host_bytes(prompt), psutil.virtual_memory().available
        if needs > HOST_PART * free:
            return about | {"not_run": f"needs {needs / 2**30:.0f} GiB of host memory, {free / 2**30:.0f} are free"}
        columns.set_link(self.link)
        rates = self._column_rates
        modes = only(modes_of(bench, rates), "overlapped", "fixed") | {"planned": Mode(columns.planned(rates))}
        found = compare(columns.measured(rates, prompt, length), modes, self.repeats)
        tokens = found.pop("tokens")
        if setting.scaled:
            found["tokens_equal"] = found["tokens_equal"] and tokens == columns.expected(prompt, length)
        return about | {"link": self.link, "rates": asdict(rates)} | found

    def _restore(self, model: DecoderConfig, speed: float | None) -> Results:
        measurement = self._measurement(model)
        link = speed * measurement.balanced_link if self.setting.scaled and speed is not None else speed
        return measure(measurement, link, self.repeats)

    def _halved(self, model: DecoderConfig) -> Results:
        return halved(self._measurement(model))

    def _rates_at(self, link: float | None) -> StreamRates:
        self.bench.set_link(link)
        return self.bench.calibrate(self.setting.batch, self.setting.calibrating_steps)

    def _measurement_of(self, model: DecoderConfig) -> Measurement:
        tokens = self.setting.restored_tokens
        engine = build(model, kernels_here(model, BLOCK_SIZE), tokens, self.setting.restored_budget)
        return Measurement(engine, tokens)

    @cached_property
    def _column_rates(self) -> StreamRates:
        setting = self.columns.setting
        return self.columns.bench.calibrate(setting.batch, setting.calibrating_steps)

    def _compared(
        self, rates: StreamRates, case: tuple[int, int, int], modes: Modes, base: str = "overlapped"
    ) -> Results:
        """With the tokens of the whole step compared, where that is small."""
        row = compared(self.bench, rates, case, modes, self.repeats, base)
        tokens = row.pop("tokens")
        if self.setting.scaled:
            row["tokens_equal"] = row["tokens_equal"] and tokens == self.bench.expected(*case)
        return row | {"link": self.bench.link, "rates": asdict(rates)}


PARTS: dict[str, Callable[[Parts], Iterator[Case]]] = {
    "latency": Parts.latency,
    "throughput": Parts.throughput,
    "ablation": Parts.ablation,
    "links": Parts.links,
    "restore": Parts.restore,
}


def run_part(
    parts: Parts, name: str, known: list[Results], deadline: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[Results]:
    """A row for each case, those measured also printed as a line of JSON: of ``known`` rows what is there, and nothing
    is begun after ``deadline``, seconds on the clock."""
    for case in PARTS[name](parts):
        row = next((row for row in known if row | case.name == row and "not_run" not in row), None)
        if row is None and clock() >= deadline:
            row = case.name | {"not_run": "the time was up"}
        elif row is None:
            row = case.name | case.measure()
            print(json.dumps({"part": name} | row), flush=True)
        yield row
