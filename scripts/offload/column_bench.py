"""Batches in columns, and what decodes with them."""

from functools import cached_property

from jaxgen.kernels.choice import Kernels
from jaxgen.layerwise.model_runner import Streaming
from jaxgen.layerwise.rates import Split, StreamRates
from jaxgen.models import init_params
from scripts.offload.bench import Bench, Mode
from scripts.offload.columns import Columns, column_of, planned_split, step_seconds
from scripts.offload.generation import Generation, Runner
from scripts.offload.modes import Measured
from scripts.offload.settings import Setting


class ColumnBench:
    """Columns, and a Bench of one batch, in which the rates are measured."""

    def __init__(self, setting: Setting, kernels: Kernels) -> None:
        self.setting = setting.of_column()
        self.bench = Bench(self.setting, kernels)
        self.link: float | None = None

    @cached_property
    def columns(self) -> Columns:
        bench = self.bench
        params = init_params(bench.model, seed=0)
        return Columns(
            bench.model,
            bench.config,
            dict(params),
            bench.programs,
            bench.rows,
            batches=self.setting.columns,
            num_open=bench.num_open,
        )

    def set_link(self, bytes_per_second: float | None) -> None:
        self.link = bytes_per_second
        self.bench.set_link(bytes_per_second)

    def run(self, mode: Mode, prompt: int, length: int) -> Generation:
        """Decode all columns. Only the decoding meets the simulated link."""
        columns, setting = self.columns, self.setting

        def use(split: Split) -> None:
            columns.use(Streaming(split, mode.overlap, buffers=mode.buffers))

        case = (prompt, length, setting.batch, setting.columns)
        return Runner(columns.run, use, columns.wait, columns.links).run(setting, case, mode.split, self.link)

    def planned(self, rates: StreamRates) -> Split:
        bench = self.bench
        return planned_split(rates, bench.cost, bench.chunk, self.setting.columns, self.columns.weights.num_bytes)

    def measured(self, rates: StreamRates, prompt: int, length: int) -> Measured:
        """For ``compare``."""
        return Measured(
            lambda mode: self.run(mode, prompt, length),
            lambda _, tokens, project: self.predicted(rates, tokens, project),
            self.setting.batch * self.setting.columns,
        )

    def predicted(self, rates: StreamRates, tokens: int, project: int) -> float:
        """Seconds of a step in which every batch streams so many tokens."""
        bench = self.bench
        column = column_of(rates, tokens, self.setting.columns, self.columns.weights.num_bytes)
        unit = rates.unit(bench.cost, bench.chunk)
        return step_seconds(rates, column, unit, project, tokens - project, bench.chunk)

    def expected(self, prompt: int, length: int) -> list[list[int]]:
        """Tokens of the whole step, one batch after another."""
        columns = range(self.setting.columns)
        return [tokens for i in columns for tokens in self.bench.expected(prompt, length, self.setting.batch, column=i)]
