"""What both fake engines say: the same tokens, over and over."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

MODEL = Path(__file__).parent.parent.parent / "weights" / "demo"
TEXT = '''def mean(values):
    """The arithmetic mean, or nothing of nothing."""
    total = sum(float(value) for value in values)
    return total / len(values) if values else None


class Reader:
    def __init__(self, path, encoding="utf-8"):
        self.path, self.encoding = path, encoding
        self.lines = open(path, encoding=encoding).read().splitlines()
'''


def tokens(count: int) -> Sequence[int]:
    """``count`` token ids of the embedded model."""
    from tokenizers import Tokenizer

    return list(islice(cycle(Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(TEXT).ids), count))
