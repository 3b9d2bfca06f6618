"""Evaluate the exported model: perplexity next to a bigram model's, recall by distance, completions."""

import json
import math
import random
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts.demo_model.corpus import Corpus, encode_documents, load_corpus
from scripts.demo_model.exercises import ExerciseMaker, filler_lines, identifiers
from scripts.demo_model.export import load_model
from scripts.demo_model.model import DemoConfig, Params, forward

DISTANCES = (16, 32, 64, 128, 256, 512, 1024)
QUERIES = {"print": "print({n})  # {v}", "assert": "assert {n} == {v}"}
TOKENS_PER_BINDING = 64
"""Tokens between a binding and its query for each other binding there, on average."""
PROMPTS = (
    "def read_config(path):\n",
    "class Queue:\n    def __init__(self, maxsize=0):\n",
    "import os\nimport sys\n\n",
    "for name in sorted(names):\n    if name.startswith(",
    "k_ab = 4821\nk_cd = 1765\nprint(k_ab)  # ",
)


@dataclass(frozen=True)
class Perplexity:
    """Of the held-out text in windows of 512 tokens; ``per_byte`` counts the bytes of the scored tokens."""

    per_token: float
    per_byte: float
    bits_per_byte: float


def _perplexity(nats: float, tokens: int, size: int) -> Perplexity:
    return Perplexity(math.exp(nats / tokens), math.exp(nats / size), nats / size / math.log(2))


def windows(stream: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """``stream`` cut into rows of ``length`` tokens; the rest falls off."""
    return stream[: len(stream) // length * length].reshape(-1, length)


def bigram_nats(train: NDArray[np.int32], rows: NDArray[np.int32], vocab_size: int) -> float:
    """Negative log likelihood of ``rows[:, 1:]`` under an interpolated Kneser-Ney bigram model (discount 0.75)."""
    discount = 0.75
    counts = np.zeros((vocab_size, vocab_size), np.int32)
    np.add.at(counts, (train[:-1], train[1:]), 1)
    followers, predecessors = np.count_nonzero(counts, axis=1), np.count_nonzero(counts, axis=0)
    continuation = (predecessors + 1) / (predecessors.sum() + vocab_size)
    totals = counts.sum(axis=1)
    before, after = rows[:, :-1], rows[:, 1:]
    total = np.maximum(totals[before], 1)
    direct = np.maximum(counts[before, after] - discount, 0) / total
    backoff = np.where(totals[before] > 0, discount * followers[before] / total, 1.0)
    return float(-np.log(direct + backoff * continuation[after]).sum())


class Scorer:
    """The model in float32 (its weights are bfloat16 numbers) on batches of one padded length."""

    def __init__(self, params: Params, config: DemoConfig):
        self.config = config
        self._forward = jax.jit(partial(forward, config=config, dtype=jnp.dtype(jnp.float32)))
        self._params = params

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """[B, T] tokens -> [B, T, V]."""
        return np.asarray(self._forward(self._params, rows))

    def nats(self, rows: NDArray[np.int32]) -> float:
        """Negative log likelihood of ``rows[:, 1:]``, each row on its own."""
        total = 0.0
        for row in rows:
            logits = jax.nn.log_softmax(self.logits(row[None])[0, :-1])
            total -= float(np.take_along_axis(np.asarray(logits), row[1:, None], axis=1).sum())
        return total

    def complete(self, tokens: list[int], count: int, length: int = 128) -> list[int]:
        """The ``count`` most likely next tokens, greedily, recomputing everything each time."""
        row = np.zeros((1, length), np.int32)
        row[0, : len(tokens)] = tokens
        for end in range(len(tokens), len(tokens) + count):
            row[0, end] = self.logits(row)[0, end - 1].argmax()
        return list(map(int, row[0, len(tokens) : len(tokens) + count]))


@dataclass(frozen=True)
class RecallCase:
    """``tokens`` end with the ``answer_length`` tokens of the answer."""

    tokens: list[int]
    answer_length: int


class RecallTest:
    """Cases of one distance: the tokens between the last of a binding's value and the first of the answer.

    Two other bindings, the binding, held-out lines with other bindings among them, the query. A value is a number of
    four digits or a quoted identifier of three to six random letters.
    """

    def __init__(self, tokenizer: Tokenizer, corpus: Corpus, seed: int = 0):
        names, lines = identifiers(corpus.held_out), filler_lines(corpus.held_out)
        self.tokenizer = tokenizer
        self.maker = ExerciseMaker(names, lines, random.Random(seed))

    def case(self, distance: int, query: str, *, number: bool) -> RecallCase:
        """One case; drawn again until its distance is exact."""
        while True:
            drawn = [self.maker.name() for _ in range(3 + distance // TOKENS_PER_BINDING)]
            name, *others = dict.fromkeys(drawn)
            value = self._value(number)
            head = "".join(f"{other} = {self._value(number)}\n" for other in others[:2]) + f"{name} = "
            before, _ = query.replace("{n}", name).split("{v}")
            bindings = [f"{other} = {self._value(number)}\n" for other in others[2:]]
            middle = self._middle(distance - self._count(before), bindings)
            opening = "" if number else '"'
            prompt = f"{head}{value}{middle}{before}{opening}"
            answer = value.removeprefix(opening)
            tokens = self.tokenizer.encode(prompt + answer)
            starts = [start for start, _ in tokens.offsets]
            # With a quoted value the opening quote belongs to the query.
            bound = sum(start < len(head) + len(value) for start in starts)
            asked = sum(start < len(prompt) for start in starts)
            if asked - bound == distance:
                return RecallCase(tokens.ids, len(starts) - asked)

    def _value(self, number: bool) -> str:
        return str(self.maker.rng.randint(1000, 9999)) if number else f'"{self.maker.identifier()}"'

    def _count(self, text: str) -> int:
        return len(self.tokenizer.encode(text).ids)

    def _middle(self, room: int, bindings: list[str]) -> str:
        """Text of about ``room`` tokens: lines with the bindings evenly among them, a comment as long as the rest."""
        text, pieces = "\n", [*bindings, ""]
        for index, binding in enumerate(pieces, 1):
            goal = room * index // len(pieces) - self._count(binding) - 2
            while self._count(text + (line := self.maker.filler(1))) <= goal:
                text += line
            text += binding
        words = room - self._count(text) - 2
        return text + ("#" + " x" * words + "\n" if words >= 0 else "")


def recall_rate(scorer: Scorer, cases: list[RecallCase], batch: int = 16) -> float:
    """Share of cases whose answer greedy decoding gives exactly.

    One pass over prompt and answer decides it: greedy decoding gives the answer if and only if each answer token is
    the most likely one after the prompt and the answer tokens before it.
    """
    length = max(len(case.tokens) for case in cases)
    length += -length % 32
    right = 0
    for start in range(0, len(cases), batch):
        rows = np.zeros((batch, length), np.int32)
        group = cases[start : start + batch]
        for row, case in zip(rows, group, strict=False):
            row[: len(case.tokens)] = case.tokens
        guesses = scorer.logits(rows).argmax(axis=-1)
        for row, case in zip(guesses, group, strict=False):
            stop = len(case.tokens)
            asked = stop - case.answer_length
            right += list(row[asked - 1 : stop - 1]) == case.tokens[asked:]
    return right / len(cases)


def recall_table(scorer: Scorer, test: RecallTest, count: int) -> dict[str, dict[int, float]]:
    """Kind of value and of query -> distance -> exact matches among ``count`` cases."""
    table: dict[str, dict[int, float]] = {}
    for kind in ("number", "identifier"):
        for label, query in QUERIES.items():
            rates = {}
            for distance in DISTANCES:
                cases = [test.case(distance, query, number=kind == "number") for _ in range(count)]
                rates[distance] = recall_rate(scorer, cases)
            table[f"{kind}, {label}"] = rates
    return table


def evaluate(directory: Path, report: Path, count: int) -> dict[str, Any]:
    """Measure the exported model in ``directory``, print both tables and write them to ``report`` as JSON."""
    params, config, tokenizer = load_model(directory)
    corpus, scorer = load_corpus(), Scorer(params, config)
    rows = windows(encode_documents(tokenizer, corpus.held_out), 512)
    size = sum(len(tokenizer.decode(row[1:].tolist(), skip_special_tokens=False).encode()) for row in rows)
    scored = rows[:, 1:].size
    bigram = bigram_nats(encode_documents(tokenizer, corpus.train), rows, config.vocab_size)
    result: dict[str, Any] = {
        "perplexity": {
            "model": asdict(_perplexity(scorer.nats(rows), scored, size)),
            "bigram": asdict(_perplexity(bigram, scored, size)),
            "tokens": scored,
            "bytes": size,
        },
        "recall": recall_table(scorer, RecallTest(tokenizer, corpus), count),
        "recall_cases": count,
        "completions": {
            prompt: tokenizer.decode(scorer.complete(tokenizer.encode(prompt).ids, 48)) for prompt in PROMPTS
        },
    }
    report.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(describe(result))
    return result


def describe(result: dict[str, Any]) -> str:
    """Both tables and the completions, as text."""
    lines = [f"{'held-out perplexity':<20}{'per token':>10}{'per byte':>10}{'bits/byte':>10}"]
    for name in ("model", "bigram"):
        figures = result["perplexity"][name]
        lines.append(
            f"{name:<20}{figures['per_token']:>10.2f}{figures['per_byte']:>10.3f}{figures['bits_per_byte']:>10.3f}"
        )
    lines += ["", f"{'recall at distance':<20}" + "".join(f"{distance:>7}" for distance in DISTANCES)]
    for name, rates in result["recall"].items():
        lines.append(f"{name:<20}" + "".join(f"{rates[distance]:>7.1%}" for distance in DISTANCES))
    lines += [f"\n--- {prompt}{text}" for prompt, text in result["completions"].items()]
    return "\n".join(lines)
