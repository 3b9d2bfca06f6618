"""Recall exercises: Python-like text in which a value bound to a name earlier has to be given again.

An exercise is text with the character span of every answer and of every value that nobody could foresee, so that
a loss can weigh the former and leave the latter out.
"""

import builtins
import keyword
import random
import re
from collections import Counter
from dataclasses import dataclass, field

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FORMS = {
    "{n} = {v}\n": ("print({n})  # {v}\n", "assert {n} == {v}\n", ">>> {n}\n{v}\n", "{n} = {v}\n"),
    'config["{n}"] = {v}\n': ('print(config["{n}"])  # {v}\n', 'assert config["{n}"] == {v}\n'),
    "def {n}():\n    return {v}\n": ("print({n}())  # {v}\n", "assert {n}() == {v}\n", ">>> {n}()\n{v}\n"),
    "# {n}: {v}\n": ("# {n}: {v}\n",),
}
"""How a value is bound -> how it is asked for."""
FORM_WEIGHTS = (6, 1, 1, 1)
QUERY_WEIGHTS = (4, 4, 1, 1)


@dataclass
class Exercise:
    """``answers`` and ``surprises``: half-open character spans of ``text``."""

    text: str = ""
    answers: list[tuple[int, int]] = field(default_factory=list)
    surprises: list[tuple[int, int]] = field(default_factory=list)

    def write(self, template: str, name: str, value: str, *, answer: bool) -> None:
        """Append ``template`` with its name and value, and note the value's span."""
        before, after = template.replace("{n}", name).split("{v}")
        start = len(self.text) + len(before)
        self.text += before + value + after
        (self.answers if answer else self.surprises).append((start, start + len(value)))


def identifiers(documents: list[str]) -> list[str]:
    """Names seen at least five times, in a fixed order."""
    counts = Counter(name for text in documents for name in re.findall(r"\b[a-zA-Z_]\w{2,15}\b", text))
    taken = {*keyword.kwlist, *dir(builtins)}
    return sorted(name for name, seen in counts.items() if seen >= 5 and name.isascii() and name not in taken)


def filler_lines(documents: list[str]) -> list[str]:
    """Lines of ordinary sources to stand between a binding and its query."""
    lines = (line for text in documents for line in text.splitlines(keepends=True))
    return [line for line in lines if line.isascii()]


class ExerciseMaker:
    """Writes exercises from names and filler lines; the same ``rng`` state gives the same text."""

    def __init__(self, names: list[str], lines: list[str], rng: random.Random):
        self.names, self.lines, self.rng = names, lines, rng

    def name(self) -> str:
        """A name out of the corpus, or a random one such as ``k_ab``, ``x17`` or ``size_qz``."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.4:
            return rng.choice(self.names)
        letters = "".join(rng.choices(LETTERS, k=rng.randint(1, 3)))
        if kind < 0.7:
            return f"{rng.choice('kvxab')}_{letters}"
        if kind < 0.85:
            return f"{letters}{rng.randint(0, 99)}"
        return f"{rng.choice(self.names)}_{letters}"

    def value(self) -> str:
        """Mostly four digits; else another number, or a quoted identifier."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.6:
            return str(rng.randint(1000, 9999))
        if kind < 0.75:
            return str(rng.randint(1, 10 ** rng.randint(1, 7)))
        return f'"{self.identifier()}"'

    def identifier(self) -> str:
        return "".join(self.rng.choices(LETTERS, k=self.rng.randint(3, 6)))

    def filler(self, count: int) -> str:
        """``count`` consecutive lines from a random place."""
        start = self.rng.randrange(len(self.lines))
        return "".join(self.lines[start : start + count])

    def recall(self, length: int) -> Exercise:
        """At least ``length`` characters of rounds: some names are bound, then each is asked for once, in any order.

        No name is asked for twice: the second answer could be copied from the first query instead of the binding.
        """
        rng, exercise = self.rng, Exercise()
        filler = rng.choice((0.0, 0.0, 0.2, 0.4, 0.6))
        lines, most = max(1, length // 256), max(2, min(16, int(length / 100 * (1 - filler))))
        while len(exercise.text) < length:
            names = dict.fromkeys(self.name() for _ in range(rng.randint(2, most)))
            bound = [(name, self.value(), rng.choices(list(FORMS), FORM_WEIGHTS)[0]) for name in names]
            asked = rng.sample(bound, len(bound))
            for answer, group in ((False, bound), (True, asked)):
                for name, value, form in group:
                    if rng.random() < filler:
                        exercise.text += self.filler(rng.randint(1, lines))
                    template = self._query(form) if answer else form
                    exercise.write(template, name, value, answer=answer)
        return exercise

    def _query(self, form: str) -> str:
        queries = FORMS[form]
        return self.rng.choices(queries, QUERY_WEIGHTS[: len(queries)])[0]
