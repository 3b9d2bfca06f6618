"""What is compared: shapes of random weights, each with its loads, and formats of weights."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DEFAULT, CLIENTS = "88m", "clients"
"""The shape, and the load, that are measured unless flags say otherwise."""


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored. ``dtype``: of the checkpoint that they are rounded from, and of all else.

    ``is_file``: all peers read one GGUF file of this type.
    """

    name: str
    dtype: str
    bits: int
    is_file: bool = False

    @property
    def is_quantised(self) -> bool:
        """Whether each peer rounds the checkpoint's weights in its own way."""
        return self.name != self.dtype and not self.is_file


FORMATS = {
    found.name: found
    for found in (
        Format("bfloat16", "bfloat16", 16),
        Format("float32", "float32", 32),
        Format("int8", "bfloat16", 8),
        Format("int4", "bfloat16", 4),
        Format("Q8_0", "bfloat16", 8, is_file=True),
        Format("Q4_0", "bfloat16", 4, is_file=True),
    )
}
OF_CHECKPOINTS = frozenset(name for name, found in FORMATS.items() if not found.is_file)
UNROUNDED = frozenset({"bfloat16", "float32"})
"""Formats of a peer that has no quantised weights of its own making."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of scripts.make.random_model, and what is measured of it unless flags say otherwise.

    ``peers``: a name, or NAME:FORMAT for one in that format alone. ``seconds``, ``warmup``: of each load, measured and
    before that. ``patience``: seconds that a request may take, and that are waited at most for as many answers as there
    are clients before anything is measured. ``load``: of scripts.peers.loads. ``vocabulary``: what to know of its size.
    """

    name: str
    about: str
    peers: tuple[str, ...]
    formats: tuple[str, ...]
    clients: tuple[int, ...]
    long_clients: int
    seconds: float
    warmup: float
    patience: float
    load: str = CLIENTS
    vocabulary: str = ""

    @property
    def title(self) -> str:
        """Its name with the parameters as pages write them, such as 88M."""
        return re.sub(r"\b\d+[mb]\b", lambda size: size[0].upper(), self.name)

    @property
    def results(self) -> Path:
        return DOCS / "results" / f"{self._title}.jsonl"

    @property
    def page(self) -> Path:
        is_first = (self.name, self.load) == (DEFAULT, CLIENTS)
        return DOCS / "results" / ("peers.md" if is_first else f"{self._title}.md")

    @property
    def _title(self) -> str:
        return f"peers-{self.name}" if self.load == CLIENTS else f"peers-{self.load}-{self.name}"


def of_files(name: str, about: str) -> Shape:
    """Return a shape that jaxgen and llama.cpp compute of the same GGUF files, for one client."""
    return Shape(
        name,
        about,
        peers=("jaxgen", "llama.cpp"),
        formats=("Q8_0", "Q4_0"),
        clients=(1,),
        long_clients=0,
        seconds=10.0,
        warmup=3.0,
        patience=150.0,
    )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            DEFAULT,
            "a Llama of 88 million parameters (hidden 768, 12 layers, 12 heads, 4 KV heads)",
            peers=("jaxgen", "OpenVINO GenAI", "vLLM"),
            formats=("bfloat16", "float32"),
            clients=(1, 4, 16, 64),
            long_clients=4,
            seconds=12.0,
            warmup=3.0,
            patience=60.0,
            vocabulary="Its vocabulary has 8,192 tokens, real models have 32,000 to 262,000. So its output layer takes "
            "less of a step than theirs ([262,144 tokens](peers-gemma-3-270m.md)).",
        ),
        Shape(
            "1b",
            "Llama-3.2-1B's shape (1.0 billion parameters, tied embeddings)",
            peers=("jaxgen", "OpenVINO GenAI", "llama.cpp:int8", "llama.cpp:int4"),
            formats=("bfloat16", "int8", "int4"),
            clients=(1, 4, 16),
            long_clients=0,
            seconds=25.0,
            warmup=5.0,
            patience=150.0,
            vocabulary="Its vocabulary has 32,768 tokens, a quarter of Llama-3.2-1B's. So its output layer takes less "
            "of a step.",
        ),
        Shape(
            "1b-152k",
            "Llama-3.2-1B's shape with a vocabulary of 151,936 tokens (1.3 billion parameters, tied embeddings)",
            peers=("jaxgen", "llama.cpp"),
            formats=("int8",),
            clients=(1, 4, 16),
            long_clients=0,
            seconds=25.0,
            warmup=5.0,
            patience=150.0,
        ),
        Shape(
            "qwen3-0.6b-152k",
            "Qwen3-0.6B's shape (a vocabulary of 151,936 tokens)",
            peers=("jaxgen", "llama.cpp"),
            formats=("int8",),
            clients=(1, 4, 16, 64),
            long_clients=0,
            seconds=12.0,
            warmup=3.0,
            patience=150.0,
        ),
        Shape(
            "gemma-3-270m",
            "Gemma-3-270M's shape (18 layers, hidden 640)",
            peers=("jaxgen", "llama.cpp"),
            formats=("int8",),
            clients=(1, 4, 16, 64),
            long_clients=0,
            seconds=12.0,
            warmup=3.0,
            patience=150.0,
            vocabulary="Its vocabulary has 262,144 tokens. The output layer has most of the weights.",
        ),
        of_files("lfm2.5-1.2b", "LFM2.5-1.2B's shape (10 of 16 layers have short convolutions)"),
        of_files("qwen3.5-0.8b", "Qwen3.5-0.8B's shape (18 of 24 layers have gated delta nets)"),
        of_files(
            "glm-4.7-flash-small",
            "GLM-4.7-Flash's shape with 4 of 47 layers, 8 of 64 experts and 32,768 tokens (latent attention)",
        ),
    )
}
