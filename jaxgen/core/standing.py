"""A sequence's place in the order of service. Host only, no jax."""

from dataclasses import dataclass
from enum import IntEnum

from jaxgen.core.service_class import ServiceClass


class Level(IntEnum):
    """Order of service. WITH_TARGETS: sequences of classes with targets, and promoted best-effort sequences."""

    WITH_TARGETS = 0
    BEST_EFFORT = 1
    BACKGROUND = 2


@dataclass(slots=True, eq=False)
class Standing:
    """Where a sequence stands in the order of service, and what came of it. ``jaxgen.scheduling`` alone writes it."""

    service: ServiceClass
    """Service class of its request, without the targets if it was accepted although it would miss them."""
    level: Level
    due_key: tuple[float, int]
    """Its place within its level: its due time, in seconds of the scheduler's clock, and an arrival number."""
    overtaken: int = 0
    """How often a sequence behind it in the order of service was admitted before it since it began to wait."""
    num_preemptions: int = 0
    """How often it lost its row and blocks before its end."""
    num_drafted_steps: int = 0
    """Steps that checked drafts of its tokens."""
    num_accepted: int = 0
    """Drafts of these steps that were right."""
    num_expected: int = 0
    """Tokens that it should find in the prefix cache, by the state of the cache and the queue when it arrived."""
    num_expected_shared: int = 0
    """Blocks of these tokens that other sequences own, or will own before it begins."""

    @property
    def is_promoted(self) -> bool:
        """Whether it is served like sequences with targets because it had waited too long."""
        return self.level is Level.WITH_TARGETS and not self.service.has_targets

    @property
    def deadline(self) -> float:
        return self.due_key[0]

    @property
    def order_key(self) -> tuple[int, float, int]:
        """The place in the order of service, smaller first."""
        return self.level, *self.due_key
