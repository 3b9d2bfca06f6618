"""What drafts bring: the same answers without and with them, in turn.

    .venv/bin/python -m scripts.measure.drafts --model smollm2-135m --pairs 5
    .venv/bin/python -m scripts.measure.drafts --shape 1b --dtype bfloat16 --clients 1,16 --right 100,80,50

``--model``: one client edits files, quotes documents and repeats what it sees, and texts that copy nothing; drafts are
looked up. ``--shape``: weights are random and copy nothing, so drafts are the answers of an earlier run, right in so
many of 100 places. Which of a pair comes first alternates. Prints the tokens per second, medians, and the ratio of each
pair, with over without, as a median with the least and the greatest. Answers must be the same.
"""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.speculation import NgramConfig
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.llm import LLM
from jaxgen.runner.programs import compile_step
from jaxgen.scheduling.drafts import Draft
from jaxgen.speculation.chances import Chances
from jaxgen.weights.encodings.weight_formats import quantized_config
from scripts.loads.shapes import SHAPES
from scripts.measure.step_profile import params_of
from scripts.measure.step_time import kernels_for
from tests.support.replayed import Replay

ROOT = Path(__file__).parents[2]
ANSWER = 128
Answers = dict[str, list[int]]
Side = Callable[[], tuple[Answers, float]]
"""Answers all requests; returns the answers and the seconds."""


@dataclass
class LearningReplay(Replay):
    """Learns how often its drafts are right, as the drafter of a server does."""

    chances: Chances = field(default_factory=Chances)

    def draft(self, sequence: Sequence, most: int) -> Draft:
        return self.chances.offer(sequence, None, super().draft(sequence, most).tokens)

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        super().checked(sequence, drafted, accepted)
        self.chances.checked(sequence, drafted, accepted)


def compare(title: str, without: Side, beside: Side, pairs: int) -> None:
    """Measure both ``pairs`` times and print the rates. Raises SystemExit if an answer is another one."""
    rates: list[list[float]] = [[], []]
    for pair in range(pairs):
        found: list[Answers] = [{}, {}]
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            found[which], seconds = (without, beside)[which]()
            rates[which].append(sum(map(len, found[which].values())) / seconds)
        if found[0] != found[1]:
            raise SystemExit(f"{title}: drafts changed an answer")
    ratios = [after / before for before, after in zip(*rates, strict=True)]
    before, after = map(median, rates)
    span = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"{title}: {before:.1f} -> {after:.1f} tokens/s, {span}", flush=True)


def texts() -> dict[str, list[str]]:
    """Prompts whose answers copy, by what they do, and some whose answers do not."""
    files = [ROOT / name for name in ("jaxgen/scheduling/average.py", "jaxgen/core/standing.py", "jaxgen/arrays.py")]
    sources = [path.read_text(encoding="utf-8")[:1500] for path in files]
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8")[:1500] for name in ("steps.md", "sampling.md")]
    return {
        "edits": [f"{one}\n# The same file with another name for the class:\n{one[:200]}" for one in sources],
        "quotes": [f"{one}\n\nThe text above says, word for word:\n\n{one[:200]}" for one in pages],
        "repeats": [f"step 1: {one[:400]}\nstep 2: {one[:400]}\nstep 3: {one[:60]}" for one in (*sources, *pages)],
        "nothing to copy": ["Once upon a time", "The capital of France", "My favourite colour is"],
    }


def answer(llm: LLM, prompts: list[str]) -> tuple[Answers, float]:
    """Answer prompts one after the other. The prefix cache has each prompt, so that decodes alone are timed."""
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    found, seconds = {}, 0.0
    for prompt in prompts:
        llm.generate([prompt], replace(params, max_tokens=1))
        began = time.perf_counter()
        (completion,) = llm.generate([prompt], params)
        seconds += time.perf_counter() - began
        found[prompt] = list(completion.tokens)
    return found, seconds


def of_texts(args: argparse.Namespace) -> None:
    """Compare a model's answers to texts of one client."""
    with LLM(args.model) as plain, LLM(args.model, speculative_config=args.speculative_config) as drafting:
        for name, prompts in texts().items():
            compare(name, partial(answer, plain, prompts), partial(answer, drafting, prompts), args.pairs)


def drive(engine: Engine, clients: int, requests: int) -> tuple[Answers, float]:
    """Answer requests in a closed loop of ``clients``; the same ones whenever it is called."""
    chance, params = random.Random(0), SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    found: Answers = {}
    sent = ended = 0
    began = time.perf_counter()
    while ended < requests:
        while sent - ended < clients and sent < requests:
            engine.add(Request(str(sent), tuple(chance.choices(range(3, 8000), k=64)), params))
            found[str(sent)] = []
            sent += 1
        for event in engine.step():
            found[event.request_id] += [] if event.token is None else [event.token]
            ended += event.finish_reason is not None
    return found, time.perf_counter() - began


def of_shape(args: argparse.Namespace) -> None:
    """Compare answers of random weights with drafts from an earlier run."""
    model = quantized_config(replace(SHAPES[args.shape], dtype=args.dtype), args.quantization)
    limits = SchedulerConfig(64, 16, 1024, prefix_caching=False)
    config = EngineConfig(CacheConfig(64, 80), limits, seed=0, max_logit_bias=16, run_ahead=False)
    drafting = replace(config, speculation=NgramConfig())
    kernels, params = kernels_for("chosen", model), params_of(model)
    drafter = LearningReplay({})
    plain = build_engine(model, config, params, frozenset(), compiled=compile_step(model, config, kernels))
    compiled = compile_step(model, drafting, kernels)
    engine = build_engine(model, drafting, params, frozenset(), compiled=compiled, drafter=drafter)
    for clients in map(int, args.clients.split(",")):
        drafter.answers, _ = drive(plain, clients, 2 * clients)
        for share in map(int, args.right.split(",")):
            drafter.right = tuple(place * share // 100 > (place - 1) * share // 100 for place in range(1, 101))
            title = f"{args.shape}, {args.quantization}, {clients} clients, {share} % right"
            load = clients, 2 * clients
            compare(title, partial(drive, plain, *load), partial(drive, engine, *load), args.pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="MODEL", help="as for jaxgen serve")
    what.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--speculative-config", default='{"method": "ngram"}', metavar="JSON", help="with --model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="none")
    parser.add_argument("--clients", default="1,16")
    parser.add_argument("--right", default="100,80,50", help="shares of right drafts, in percent")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    (of_texts if args.model else of_shape)(args)


if __name__ == "__main__":
    main()
