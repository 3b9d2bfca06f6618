"""Training batches: windows of text, recall exercises and copies of random tokens, mixed row by row."""

import random
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts.demo_model.corpus import END_OF_TEXT, Corpus, encode_documents, statement_starts
from scripts.demo_model.exercises import ExerciseMaker, filler_lines, identifiers

RowKind = Literal["text", "recall", "copy"]


class Kind(IntEnum):
    """What a target token is; each kind has a weight in the loss and a line in the log."""

    IGNORED = 0
    TEXT = 1
    CONTEXT = 2
    ANSWER = 3
    COPY = 4


WEIGHTS = {Kind.IGNORED: 0.0, Kind.TEXT: 1.0, Kind.CONTEXT: 0.1, Kind.ANSWER: 3.0, Kind.COPY: 1.0}


@dataclass(frozen=True)
class Batch:
    """``tokens`` [B, T + 1]; ``kinds`` [B, T] says what each target, ``tokens[:, 1:]``, is."""

    tokens: NDArray[np.int32]
    kinds: NDArray[np.int32]


class BatchMaker:
    """Makes the batch of a step from the seed and the step's number alone, so that a resumed run continues alike."""

    def __init__(self, tokenizer: Tokenizer, corpus: Corpus, seed: int):
        self.tokenizer, self.seed = tokenizer, seed
        self.stream = encode_documents(tokenizer, corpus.train)
        self.starts = statement_starts(tokenizer, self.stream)
        self.names, self.lines = identifiers(corpus.train), filler_lines(corpus.train)
        self.end = tokenizer.token_to_id(END_OF_TEXT)

    def batch(self, step: int, rows: int, length: int, mix: dict[RowKind, float]) -> Batch:
        """``rows`` rows of ``length`` targets, each of a kind drawn with the chances in ``mix``."""
        rng = random.Random(f"{self.seed}/{step}")
        makers = {"text": self._text, "recall": self._recall, "copy": self._copy}
        kinds = rng.choices(list(mix), list(mix.values()), k=rows)
        made = [makers[kind](length, rng) for kind in kinds]
        return Batch(np.stack([tokens for tokens, _ in made]), np.stack([kinds[1:] for _, kinds in made]))

    def _text(self, length: int, rng: random.Random) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """A window that begins at a statement, as a prompt does, three times in four; else anywhere."""
        last = len(self.stream) - length
        start = rng.randrange(last)
        if rng.random() < 0.75:
            start = min(int(rng.choice(self.starts)), last - 1)
        return self.stream[start : start + length + 1], np.full(length + 1, Kind.TEXT, np.int32)

    def _copy(self, length: int, rng: random.Random) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Random tokens repeated with a random period: nothing but looking back can foretell the repeats."""
        period = rng.randint(4, max(4, length // 2))
        pattern = np.array(rng.choices(range(self.tokenizer.get_vocab_size()), k=period), np.int32)
        kinds = np.full(length + 1, Kind.COPY, np.int32)
        # The token after the first full period is the first that could be known, once its predecessor is seen again.
        kinds[: period + 1] = Kind.IGNORED
        return np.resize(pattern, length + 1), kinds

    def _recall(self, length: int, rng: random.Random) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        exercise = ExerciseMaker(self.names, self.lines, rng).recall(4 * length)
        by_char = np.full(len(exercise.text), Kind.CONTEXT, np.int32)
        for spans, kind in ((exercise.answers, Kind.ANSWER), (exercise.surprises, Kind.IGNORED)):
            for start, stop in spans:
                by_char[start:stop] = kind
        encoding = self.tokenizer.encode(exercise.text)
        tokens = np.full(length + 1, self.end, np.int32)
        kinds = np.full(length + 1, Kind.IGNORED, np.int32)
        count = min(len(encoding.ids), length + 1)
        tokens[:count] = encoding.ids[:count]
        kinds[:count] = by_char[[start for start, _ in encoding.offsets[:count]]]
        return tokens, kinds
