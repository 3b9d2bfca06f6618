"""Measure what quantization costs the embedded model: ``python -m scripts.measure.quantization [--formats none,fp8]``.

Prints for each format the bytes of the weights, the perplexity of held-out text in windows of 256 tokens, the change of
it, the mean difference of a token's log-probability, and how many values of names the model recalls (the test of
scripts/demo_model/evaluate.py). Others are compared with the first format.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxgen.assemble import find_parts
from jaxgen.core.config import DType, EngineOptions
from jaxgen.core.quantization import Quantization
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.model_texts import own_texts
from jaxgen.weights.packaged.default_model import DEMO
from scripts.demo_model.corpus import encode_documents, load_corpus
from scripts.demo_model.evaluate import QUERIES, RecallCase, RecallTest, windows

WINDOW = 256
DISTANCE = 128
"""Tokens between a value and the question for it."""


@dataclass(frozen=True)
class Figures:
    """``logprobs``: of all scored tokens, in order. ``recalled``: share of the values."""

    weight_bytes: int
    logprobs: tuple[float, ...]
    recalled: float

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


def measure(
    quantization: Quantization, dtype: DType, rows: Sequence[Sequence[int]], cases: Sequence[RecallCase]
) -> Figures:
    """Return the figures of the embedded model with its weights in a format."""
    options = EngineOptions()
    parts = find_parts(dtype=dtype, quantization=quantization, options=options)
    engine = parts.build(parts.resolve(options), options, own_texts(parts.directory), ends=False, progress=False)
    scored = [
        Request(f"w{i}", tuple(row), SamplingParams(prompt_logprobs=0, max_tokens=0)) for i, row in enumerate(rows)
    ]
    logprobs = [
        entry.logprob
        for events in _run(engine, scored)
        for event in events
        for entry in event.prompt_logprobs or ()
        if entry is not None
    ]
    asked = [
        Request(
            f"r{i}",
            tuple(case.tokens[: -case.answer_length]),
            SamplingParams(max_tokens=case.answer_length, temperature=0.0, ignore_eos=True),
        )
        for i, case in enumerate(cases)
    ]
    answers = [[event.token for event in events if event.token is not None] for events in _run(engine, asked)]
    right = sum(answer == case.tokens[-case.answer_length :] for answer, case in zip(answers, cases, strict=True))
    return Figures(parts.params_bytes, tuple(logprobs), right / len(cases))


def _run(engine: Engine, requests: Sequence[Request]) -> Iterator[list[Any]]:
    """Run all requests to their end; yield the events of each, in order."""
    events: dict[str, list[Any]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
    yield from events.values()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="none,int8,int4,fp8", help="values of --quantization")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--windows", type=int, default=200, help=f"of held-out text, {WINDOW} tokens each")
    parser.add_argument("--cases", type=int, default=50, help="of recall for each kind of value and question")
    args = parser.parse_args()
    corpus = load_corpus()
    tokenizer = _tokenizer()
    rows = windows(encode_documents(tokenizer, corpus.held_out), WINDOW)[: args.windows].tolist()
    test = RecallTest(tokenizer, corpus)
    cases = [
        test.case(DISTANCE, query, number=number)
        for number in (True, False)
        for query in QUERIES.values()
        for _ in range(args.cases)
    ]
    print(f"{'format':<8}{'weights, MB':>12}{'perplexity':>12}{'change':>9}{'log-prob.':>11}{'recall':>9}")
    first: Figures | None = None
    for name in args.formats.split(","):
        result = measure(name, args.dtype, rows, cases)
        first = first or result
        apart = sum(abs(a - b) for a, b in zip(result.logprobs, first.logprobs, strict=True)) / len(result.logprobs)
        change = result.perplexity / first.perplexity - 1
        print(
            f"{name:<8}{result.weight_bytes / 1e6:>12.2f}{result.perplexity:>12.3f}{change:>9.2%}{apart:>11.4f}"
            f"{result.recalled:>9.1%}",
            flush=True,
        )


def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


if __name__ == "__main__":
    main()
