"""Answers under a JSON schema, and the same load without one: clients in closed loops."""

import argparse
from dataclasses import dataclass
from typing import Any

from jaxgen.server.benchmark.requests import IdPrompts, Lengths, Planner, request_fields
from scripts.peers.load import VOCAB_SIZE, Cell, Times, measure
from scripts.peers.loads.forms import FORMS
from scripts.peers.peer import SERVED_NAME, Peer
from scripts.peers.shapes import Shape
from scripts.peers.tables import ms

PROMPT_TOKENS = 100
MOST_TOKENS = 300
"""Of an answer under a schema. Longer answers are cut."""
CLIENTS = 16
WITH, WITHOUT = "with_schema", "without"
"""Names of the two halves in the figures."""


@dataclass(frozen=True, slots=True, order=True)
class Schemas:
    """A load of ``clients`` with answers that fit a form of scripts.peers.loads.forms, then with free answers.

    A free answer is as long as an answer that fits the form.
    """

    clients: int
    form: str

    @classmethod
    def of(cls, figures: dict[str, Any]) -> "Schemas":
        """Return the load whose figures these are."""
        return cls(figures["clients"], figures["form"])

    @property
    def name(self) -> str:
        return f"{self.clients} client{'s' * (self.clients != 1)}, {self.form}"

    def measure(self, base_url: str, peer: Peer, times: Times, seed: int) -> dict[str, Any]:
        """Return the figures of both halves, ready for JSON; the second is left out where the first has no answer.

        ``ended``: answers under the schema that were not cut. Raises PeerError for a peer that cannot do it.
        """
        cell = Cell(clients=self.clients)
        planner = _planner(peer.usage, MOST_TOKENS, seed, peer.fitting(FORMS[self.form]))
        first = measure(base_url, peer.usage, cell, times, seed, planner)
        halves = {WITH: first | {"ended": first.pop("wrong_lengths")}}
        wrong = 0
        if first["completed"]:
            planner = _planner(peer.usage, round(first["answer_tokens"]), seed + 1, {"ignore_eos": True})
            second = measure(base_url, peer.usage, cell, times, seed, planner)
            wrong, halves[WITHOUT] = second["wrong_lengths"], second
        both = halves.values()
        counts = {name: sum(half[name] for half in both) for name in ("completed", "failed")}
        return {**halves, **counts, "reasons": [*first["reasons"]], "wrong_lengths": wrong}

    def summary(self, figures: dict[str, Any]) -> str:
        """Return the figures in a line."""
        return "; ".join(
            f"{name.replace('_', ' ')} {figures[name]['output_tokens_per_s']:.0f} output tokens/s, "
            f"{figures[name]['requests_per_s']:.2f} answers/s of {figures[name]['answer_tokens']:.0f} tokens, "
            f"inter-token {' / '.join(ms(figures[name]['inter_token_s'][q]) for q in ('p50', 'p95'))} ms (P50 / P95)"
            for name in (WITH, WITHOUT)
        )


def _planner(usage: str, length: int, seed: int, more: dict[str, Any]) -> Planner:
    fields = request_fields(SERVED_NAME, usage=usage, ignore_eos=False, temperature=0.0, top_p=1.0)
    lengths = Lengths.about(PROMPT_TOKENS, length, std_share=0.0)
    return Planner(lengths, IdPrompts(VOCAB_SIZE, 0, seed), 0, fields | more, seed)


def _shape(name: str, about: str, formats: tuple[str, ...], seconds: float, warmup: float, patience: float) -> Shape:
    return Shape(
        name,
        about,
        peers=("jaxgen", "OpenVINO GenAI", "llama.cpp"),
        formats=formats,
        clients=(CLIENTS,),
        long_clients=0,
        seconds=seconds,
        warmup=warmup,
        patience=patience,
        load="schemas",
    )


SHAPES = {
    shape.name: shape
    for shape in (
        _shape(
            "88m-smollm2",
            "a Llama of 113 million parameters (hidden 768, 12 layers, 12 heads, 4 KV heads) with SmolLM2's tokenizer "
            "of 49,152 tokens",
            formats=("bfloat16",),
            seconds=12.0,
            warmup=3.0,
            patience=120.0,  # llama.cpp's first answers need more than a minute
        ),
        _shape(
            "1b-qwen",
            "Llama-3.2-1B's shape (1.3 billion parameters) with Qwen's tokenizer and 151,936 embeddings",
            formats=("int8",),
            seconds=25.0,
            warmup=5.0,
            patience=150.0,
        ),
    )
}


def cells(args: argparse.Namespace) -> list[Schemas]:
    """Return the loads that flags ask for, or those of the shape."""
    clients = SHAPES[args.shape].clients if args.clients is None else args.clients
    return [Schemas(number, form) for number in clients for form in args.forms or FORMS]
