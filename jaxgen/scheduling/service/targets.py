"""Inter-token targets: how long a step may take, and which decodes miss them together. Host only, no jax, no clock."""

from collections import abc
from collections.abc import Iterable
from math import inf

from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.core.standing import Level
from jaxgen.scheduling.step_time import LEAST_CHUNK, MARGIN, StepTimeModel


def targets_between(classes: Iterable[ServiceClass]) -> list[float]:
    """Inter-token targets of classes in seconds, the shortest first."""
    return sorted({target for service in classes if (target := service.inter_token_seconds) is not None})


def time_left(step_time: StepTimeModel, chunks: list[Chunk]) -> float:
    """Seconds left in a step with these chunks before an inter-token target is missed. Negative: all are. inf: none
    apply."""
    left = _times_left(step_time, chunks)
    return next((seconds for seconds in left if seconds >= 0.0), left[-1] if left else inf)


def time_for_prompts(step_time: StepTimeModel, decodes: list[Chunk], start: int) -> float:
    """Return the seconds for prompts in a step with these decodes, by the shortest target that leaves room.

    A target leaves room if LEAST_CHUNK tokens from position ``start`` on fit. Shorter targets could be met only without
    prompts. inf: none leaves room.
    """
    least = LEAST_CHUNK * (step_time.wide.per_token + step_time.wide.per_position * start)
    return next((seconds for seconds in _times_left(step_time, decodes) if seconds >= least), inf)


def _times_left(step_time: StepTimeModel, chunks: list[Chunk]) -> list[float]:
    """Return the seconds left in a step before each inter-token target of its decodes, the shortest target first."""
    decodes = [chunk for chunk in chunks if chunk.length == 1 or chunk.start >= chunk.sequence.num_prompt]
    targets = targets_between([chunk.sequence.standing.service for chunk in decodes])
    if not targets:
        return []
    tokens = sum([chunk.length for chunk in chunks])
    positions = sum([chunk.length * chunk.start for chunk in chunks if chunk.length > 1])
    contexts = sum([chunk.start for chunk in chunks if chunk.length == 1])
    taken = step_time.wide.seconds(tokens, positions, contexts)
    return [MARGIN * target - taken for target in targets]


def breaks_targets(sequences: abc.Sequence[Sequence], step_time: StepTimeModel | None) -> bool:
    """Whether decodes of these sequences miss an inter-token target that sequences with targets alone would meet."""
    targets = targets_between([s.standing.service for s in sequences])
    if step_time is None or not targets:
        return False
    together = _decode_seconds(step_time, sequences)
    if together <= MARGIN * targets[0]:
        return False
    alone = _decode_seconds(step_time, [s for s in sequences if s.standing.level is Level.WITH_TARGETS])
    return any(alone <= MARGIN * target < together for target in targets)


def _decode_seconds(step_time: StepTimeModel, sequences: abc.Sequence[Sequence]) -> float:
    return step_time.decode_seconds(len(sequences), sum([s.num_computed for s in sequences]))
