"""The paper's tables, and what each part of the scheme is worth. Each part returns rows, and prints them as it goes."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cached_property

import psutil

from jaxgen.kernels import Kernels
from jaxgen.offload.stream_rates import StreamRates, transfer_all
from scripts.offload_benchmark.bench import Bench, Mode, kernels_here
from scripts.offload_benchmark.column_bench import ColumnBench
from scripts.offload_benchmark.modes import Results, compare, half_of, modes_of, only
from scripts.offload_benchmark.restore import BLOCK_SIZE, Measurement, build, restores
from scripts.offload_benchmark.settings import PROJECTION_PART, Setting, projection_part
from scripts.offload_benchmark.smoke import compared, scaled_link

HOST_PART = 0.8
"""Of the host's free memory, what a case may take."""


class Parts:
    """One model's benches, made when a part needs them, and the link of those parts that have but one."""

    def __init__(self, setting: Setting, kernels: Kernels, repeats: int) -> None:
        self.setting, self.repeats, self._kernels = setting, repeats, kernels

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

    def calibrated(self, link: float | None) -> StreamRates:
        """Rates at this link, which it sets."""
        self.bench.set_link(link)
        return self.bench.calibrate(self.setting.batch, self.setting.calibrating_steps)

    def latency(self) -> Iterator[Results]:
        """Weights resident, KV on the host: full, overlapped, fixed and planned, for each prompt and length."""
        link, setting = self.link, self.setting
        rates = self.calibrated(link)
        modes = modes_of(self.bench, rates)
        for prompt in setting.prompts:
            for length in setting.generate:
                case = (prompt, length, setting.batch)
                yield self._checked({"link": link, "rates": asdict(rates)} | self._compared(rates, case, modes))

    def links(self) -> Iterator[Results]:
        """Planned against overlapped over links of the paper's speeds, and, on a GPU, its own."""
        setting = self.setting
        links: list[float | None] = list(setting.links) if setting.scaled else [*setting.links, None]
        for paper in links:
            link = self.unscaled * projection_part(paper) if setting.scaled and paper is not None else paper
            rates = self.calibrated(link)
            modes = only(modes_of(self.bench, rates), "overlapped", "planned")
            case = (setting.prompts[0], setting.generate[0], setting.batch)
            about = {"papers_link": paper, "link": link, "rates": asdict(rates)}
            yield self._checked(about | self._compared(rates, case, modes))

    def ablation(self) -> Iterator[Results]:
        """Planned, and the same without one part of the scheme; a latency and a throughput row."""
        link, setting = self.link, self.setting
        rates = self.calibrated(link)
        planned = modes_of(self.bench, rates)["planned"]
        modes = {
            "planned": planned,
            "planner off": replace(planned, split=half_of(self.bench.chunk)),
            "scheduler off": replace(planned, overlap=False),
            "runtime off": replace(planned, buffers=1, pinned=False),
            "all off": Mode(transfer_all, overlap=False, pinned=False),
        }
        for batch in dict.fromkeys((setting.batch, setting.larger_batch)):
            case = (setting.prompts[0], setting.generate[0], batch)
            about = {"link": link, "rates": asdict(rates)}
            yield self._checked(about | self._compared(rates, case, modes, base="all off"))

    def throughput(self) -> Iterator[Results]:
        """Columns, with weights on the host too."""
        columns, link = self.columns, self.link
        columns.set_link(link)
        setting, bench = columns.setting, columns.bench
        rates = bench.calibrate(setting.batch, setting.calibrating_steps)
        modes = only(modes_of(bench, rates), "overlapped", "fixed") | {"planned": Mode(columns.planned(rates))}
        length = setting.column_steps
        for prompt in setting.column_prompts:
            about = {"prompt": prompt, "generate": length, "batch": setting.batch, "columns": setting.columns}
            needs, free = setting.host_bytes(prompt), psutil.virtual_memory().available
            if needs > HOST_PART * free:
                yield about | {"not_run": f"needs {needs / 2**30:.0f} GiB of host memory, {free / 2**30:.0f} are free"}
                continue
            of_prompt = columns.measured(rates, prompt, length)
            row: Results = about | {"link": link, "rates": asdict(rates)} | compare(of_prompt, modes, self.repeats)
            tokens = row.pop("tokens")
            if setting.scaled:
                row["tokens_equal"] = row["tokens_equal"] and tokens == columns.expected(prompt, length)
            yield row

    def restore(self) -> Iterator[Results]:
        """A context that comes back to a model with as many KV heads as heads, and to one with fewer."""
        setting = self.setting
        for model in setting.restored:
            measurement = Measurement(
                build(model, kernels_here(model, BLOCK_SIZE), setting.restored_tokens, setting.restored_budget),
                setting.restored_tokens,
            )
            name = "GQA" if model.num_kv_heads < model.num_heads else "MHA"
            for row in restores(measurement, scaled=setting.scaled, repeats=self.repeats):
                yield {"model": name} | row

    def _compared(
        self, rates: StreamRates, case: tuple[int, int, int], modes: dict[str, Mode], base: str = "overlapped"
    ) -> Results:
        return compared(self.bench, rates, case, modes, self.repeats, base)

    def _checked(self, row: Results) -> Results:
        """With the tokens of the whole step compared, where that is small."""
        tokens = row.pop("tokens")
        if self.setting.scaled:
            expected = self.bench.expected(row["prompt"], row["generate"], row["batch"])
            row["tokens_equal"] = row["tokens_equal"] and tokens == expected
        return row


PARTS: dict[str, Callable[[Parts], Iterator[Results]]] = {
    "latency": Parts.latency,
    "throughput": Parts.throughput,
    "ablation": Parts.ablation,
    "links": Parts.links,
    "restore": Parts.restore,
}


def run_part(parts: Parts, name: str) -> list[Results]:
    """All rows, each also printed as a line of JSON."""
    rows = []
    for row in PARTS[name](parts):
        print(json.dumps({"part": name} | row), flush=True)
        rows.append(row)
    return rows
