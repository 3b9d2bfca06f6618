"""Host memory behind the KV cache, as the engine's loop sees it, and its absence. Host only, no jax."""

from typing import Protocol

from jaxgen.cache.host_tier import HostTier
from jaxgen.core.sequence import Restore
from jaxgen.core.stats import KVTierStats, OffloadStats
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import StepSample


class Offloading(Protocol):
    """Copies KV blocks to host memory and back, next to steps. ``jaxgen.offload.build.Offload`` implements it."""

    @property
    def tier(self) -> HostTier | None:
        """The host memory, as the scheduler sees it; None: there is none."""
        ...

    @property
    def has_saves(self) -> bool:
        """Whether steps must go on, although no request does, until blocks are in host memory."""
        ...

    @property
    def has_blocks_to_write(self) -> bool:
        """Whether blocks are on their way to a KV tier, so that steps must go on before the engine ends."""
        ...

    @property
    def copies(self) -> bool:
        """Whether any copy between the device and the host is under way."""
        ...

    @property
    def busy(self) -> bool:
        """Whether any copy, or any fetch from a KV tier, is under way."""
        ...

    @property
    def projected(self) -> int:
        """Tokens whose projection the last ``poll`` dispatched."""
        ...

    @property
    def host_blocks(self) -> int:
        """Blocks in host memory now."""
        ...

    def poll(self) -> list[tuple[Restore, bool]]:
        """Enter finished fetches and copies. Return the restores that have ended, and whether each is complete."""
        ...

    def start(self, plan: StepPlan) -> None:
        """Start the plan's saves and restores. Call it before the plan's step, which may overwrite blocks to save."""
        ...

    def observe_projection(self, sample: StepSample, projected: int) -> None:
        """Learn from a step that came right after the projection of ``projected`` tokens, and waited for it."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until a copy or a fetch ends, for ``seconds`` at most."""
        ...

    def fail(self) -> None:
        """Drop all copies and fetches under way, since the cache is lost."""
        ...

    def close(self, seconds: float) -> None:
        """Write what waits for that to the KV tier, for ``seconds`` at most."""
        ...

    def stats(self) -> OffloadStats | None:
        """Return a snapshot for metrics; None: nothing is offloaded."""
        ...

    def kv_tier_stats(self) -> KVTierStats | None:
        """Return the counters of the KV tier; None: there is none."""
        ...


class _NoOffload:
    """Offloading where the cache has no host memory behind it: nothing is ever copied."""

    tier = None
    has_saves = has_blocks_to_write = copies = busy = False
    projected = host_blocks = 0

    def poll(self) -> list[tuple[Restore, bool]]:
        return []

    def start(self, plan: StepPlan) -> None:
        """Do nothing, as for all that follows."""

    def observe_projection(self, sample: StepSample, projected: int) -> None: ...

    def wait(self, seconds: float) -> None: ...

    def fail(self) -> None: ...

    def close(self, seconds: float) -> None: ...

    def stats(self) -> None: ...

    def kv_tier_stats(self) -> None: ...


NO_OFFLOAD: Offloading = _NoOffload()
