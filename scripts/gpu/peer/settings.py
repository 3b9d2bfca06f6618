"""What a run measures: on a GPU, and in a dry run on a CPU."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jaxgen.weights.packaged.tiny import make_tiny_outline
from scripts.gpu.peer.loads import Batch, Clients, Load
from scripts.gpu.rows.sizes import DRY as DRY_ROWS
from scripts.gpu.rows.work import LLAMA3_8B_FILE

PROMPT, COMPLETION = 512, 128
"""Mean tokens, as in the server rows of scripts.gpu."""
TIMES = {1: (6.0, 5.0), 16: (6.0, 6.0), 64: (8.0, 8.0), 256: (10.0, 15.0)}
"""Seconds of the window, and of patience, by clients. Of another number: those of the next one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run. ``config``: values of config.json, as JSON. ``jaxgen_flags``: of ``jaxgen serve``,
    without the model."""

    about: str
    config: str
    max_model_len: int
    max_num_seqs: int
    warm_up: Batch
    loads: tuple[Load, ...]
    start_seconds: float
    """In which jaxgen must be ready."""
    jaxgen_flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def write_model(self, directory: Path) -> None:
        """Write config.json and a tokenizer without weights, for ``--load-format dummy``."""
        make_tiny_outline(directory, **json.loads(self.config))


def closed_loops(clients: Iterable[int]) -> tuple[Clients, ...]:
    """Return the loads of these clients on a GPU."""
    known = [*TIMES.items()]
    chosen = {number: next((times for most, times in known if number <= most), known[-1][1]) for number in clients}
    return tuple(Clients(number, PROMPT, COMPLETION, *times) for number, times in chosen.items())


LONG = Batch("five prompts of 8,000 tokens", 5, 1, 8000, 16, patience=15.0)
FULL = Settings(
    about="Llama-3-8B's shape in bfloat16",
    config=LLAMA3_8B_FILE,
    max_model_len=8192,
    max_num_seqs=256,
    warm_up=Batch("warm-up", 96, 64, PROMPT, 32, patience=12.0),
    loads=(*closed_loops(TIMES), LONG),
    start_seconds=90.0,
)
DRY = Settings(
    about="a tiny model",
    config='{"vocab_size": 2048}',
    max_model_len=128,
    max_num_seqs=4,
    warm_up=Batch("warm-up", 2, 2, 20, 4, patience=20.0),
    loads=(Clients(1, 20, 8, 0.2, 10.0), Clients(4, 20, 8, 0.2, 10.0), Batch("two long prompts", 2, 1, 60, 4, 10.0)),
    start_seconds=120.0,
    jaxgen_flags=(*DRY_ROWS.server.flags, "--kernels", DRY_ROWS.server.kernels),
    environment={"JAX_PLATFORMS": "cpu"},
)
