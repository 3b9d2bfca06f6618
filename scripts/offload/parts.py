"""The paper's tables, and what each part of the scheme is worth: the cases of each part."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.planning.rates import StreamRates, transfer_all
from scripts.offload.bench import Bench, Mode, kernels_here
from scripts.offload.modes import Modes, Results, half_of, modes_of, only
from scripts.offload.restore import BLOCK_SIZE, Measurement, build, halved, measure, restore_links
from scripts.offload.settings import PROJECTION_PART, Setting, projection_part
from scripts.offload.smoke import compared, scaled_link


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
            "all off": Mode(transfer_all, overlap=False),
        }
        return self._compared(rates, (self.setting.prompts[0], self.setting.generate[0], batch), modes, base="all off")

    def _links(self, paper: float | None) -> Results:
        setting = self.setting
        rates = self.at(self.unscaled * projection_part(paper) if setting.scaled and paper is not None else paper)
        modes = only(modes_of(self.bench, rates), "overlapped", "planned")
        return self._compared(rates, (setting.prompts[0], setting.generate[0], setting.batch), modes)

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
    "ablation": Parts.ablation,
    "links": Parts.links,
    "restore": Parts.restore,
}
