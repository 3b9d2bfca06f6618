"""The device's part of an engine: parameters, cache, rows and the compiled programs that use them."""

import atexit
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import jax
import numpy as np

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.hardware.device_info import DeviceInfo, this_cpu
from jaxgen.hardware.large_pages import use_large_pages
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import KVCache, init_cache
from jaxgen.models.model import PackedParams
from jaxgen.models.placement import pack_params
from jaxgen.runner.devices import on_each
from jaxgen.runner.finite import make_finder
from jaxgen.runner.packer import Packer
from jaxgen.runner.program import Program
from jaxgen.runner.programs import CompiledStep, init_products_buffer
from jaxgen.runner.row_state import ROWS_AT_ONCE, RowLoader, init_rows
from jaxgen.runner.state_snapshots import DeviceSnapshots, states_on_device, states_on_host
from jaxgen.runner.step import StepOutput
from jaxgen.runner.step_layout import StepLayout

logger = logging.getLogger(__name__)


@atexit.register
def wait_for_all() -> None:
    """Wait for all programs, because XLA aborts a process that ends while a program runs on its CPU."""
    jax.block_until_ready(jax.live_arrays())


def device_info() -> DeviceInfo:
    """Return the default device's DeviceInfo."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return this_cpu()
    capability = getattr(device, "compute_capability", None)  # only NVIDIA GPUs have one
    if capability is not None:
        major, minor = map(int, capability.split("."))
        capability = (major, minor)
    return DeviceInfo(device.platform, device.device_kind, device.core_count, compute_capability=capability)


def _move_to_large_pages(params: PackedParams) -> None:
    """Have parameters in a CPU's memory lie in large pages, as far as they fill such pages and the system has them."""
    start, moved = time.perf_counter(), 0
    for array in jax.block_until_ready(jax.tree.leaves(params)):
        for shard in array.addressable_shards:
            if shard.device.platform == "cpu":
                moved += use_large_pages(shard.data.unsafe_buffer_pointer(), shard.data.nbytes)
    logger.debug("%d MiB of weights moved to large pages in %.1f s", moved >> 20, time.perf_counter() - start)


class ModelRunner:
    """Runs plans, in the order given; returned outputs may still be being computed."""

    runs_ahead = True
    copies_blocks = True

    def __init__(self, model: ModelConfig, config: EngineConfig, params: PackedParams, compiled: CompiledStep):
        """Pack the parameters that the programs read packed, and use the others without a copy."""
        self._model = model
        self._config = config
        self.params = pack_params(model, dict(params), compiled.kernels)
        _move_to_large_pages(self.params)
        self._compiled = compiled
        self._loader = RowLoader(config, model.vocab_size)
        self._packer = Packer(config)
        self._narrow_packer = Packer(config, config.narrow_width)
        self._narrow = compiled.narrow
        self._cache: KVCache
        self._snapshots = DeviceSnapshots(model, config, compiled.states, compiled.kernels)
        self.reset()

    @property
    def kernels(self) -> Kernels:
        """The kernels of the programs."""
        return self._compiled.kernels

    @property
    def cache(self) -> KVCache:
        """The KV cache. Only this class writes it, also for ``update_cache``."""
        return self._cache

    @property
    def snapshots(self) -> DeviceSnapshots:
        """The snapshots of rows' states."""
        return self._snapshots

    def update_cache(self, program: Callable[..., KVCache], *args: object) -> None:
        """Replace the cache by ``program(cache, *args)``, which may take the old one's memory."""
        self._cache = program(self._cache, *args)

    def reset(self) -> None:
        """Forget everything but the parameters."""
        for name in ("_cache", "rows", "_products_buffers"):  # first, since two of each may not fit
            self.__dict__.pop(name, None)
        kernels, config = self._compiled.kernels, self._config
        self._snapshots.reset()
        make, model, num_rows = partial(on_each, self._compiled.devices), self._model, config.scheduler.max_num_seqs
        self._cache = make(partial(init_cache, model, config.cache, kernels, num_rows=num_rows))
        self.rows = make(partial(init_rows, config, model.vocab_size, kernels.zeros))
        packers = [self._packer] + ([self._narrow_packer] if self._narrow is not None else [])
        self._products_buffers = {
            packer.width: make(partial(init_products_buffer, model, config, kernels, packer.width))
            for packer in packers
        }

    def disable_narrow(self) -> None:
        """Run all plans with the wide program."""
        self._narrow = None

    def uses_narrow(self, plan: StepPlan) -> bool:
        """Whether the plan has decodes only and there is a narrow program for that number."""
        return self._narrow is not None and plan.decodes_only and plan.num_tokens <= (self._config.narrow_width or 0)

    def load(self, plan: StepPlan) -> None:
        """Copy blocks and states as the plan says, and load the rows that it admits or moves to other blocks."""
        self._load(plan, in_step=0)

    def _load(self, plan: StepPlan, *, in_step: int) -> None:
        for copy in plan.copies:
            self.update_cache(self._compiled.copy_block, np.int32(copy.source), np.int32(copy.target))
        if plan.state_loads:
            self._cache = replace(self._cache, states=self._snapshots.load(self._cache.states, plan.state_loads))
        self.rows = self._compiled.rows.load(self.rows, plan, self._loader, in_step=in_step)

    def run(self, plan: StepPlan, *, narrow: bool | None = None) -> StepOutput:
        """Load the rows that the plan admits and dispatch its step.

        A plan of decodes only runs with the narrow program, if there is one, unless ``narrow`` is set.
        """
        in_step = ROWS_AT_ONCE if self.kernels.separate_sampling else 0
        self._load(plan, in_step=in_step)
        if narrow is None:
            narrow = self.uses_narrow(plan)
        if narrow and self._narrow is not None:
            step, packer = self._narrow, self._narrow_packer
        else:
            step, packer = self._compiled.run, self._packer
        words, products_buffer = packer.pack(plan), self._products_buffers[packer.width]
        loaded = [self._loader.rows(plan.loaded[:in_step])] if in_step and plan.loaded else []
        result = step(self.params, self._cache, self.rows, words, products_buffer, *loaded)
        self._cache, self.rows, self._products_buffers[packer.width], output = result
        self._snapshots.take(self._cache.states, plan.snapshots)
        if self._config.run_ahead:  # else they are waited for at once
            output.tokens.copy_to_host_async()
        return output

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """See Runner. The second run starts from the same state if the plan's input tokens are known on the host."""
        states = states_on_host(self._cache.states)
        yield
        self._cache = replace(self._cache, states=())  # first, since two of each may not fit
        self._cache = replace(self._cache, states=states_on_device(states))

    def first_not_finite(self, plan: StepPlan) -> int:
        """Return the first layer whose output has NaN or infinity, see ``Runner.first_not_finite``."""
        self.load(plan)
        layout = StepLayout(self._model, self._config, self._packer.width)
        finder = Program(make_finder(layout), layout.shapes(self.kernels), donated=(1,), devices=self._compiled.devices)
        self._cache, layer = finder.compile()(self.params, self._cache, self.rows, self._packer.pack(plan))
        return int(layer)

    def offload_stats(self) -> None:
        """Return None: the cache is on the device, and host memory behind it has counters of its own."""

    def wait(self) -> None:
        """Wait until all dispatched programs are done."""
        jax.block_until_ready((self._cache, self.rows))
