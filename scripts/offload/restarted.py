"""Time the first token of a known prefix after a restart, with a KV tier in a directory and without one.

Processes are started in turn, in pairs: one without a tier, one with the directory that an earlier process has filled.
Each answers a short prompt first, then one of ``--tokens`` tokens. Prints a line of JSON for each pair: seconds to the
first token, and the tokens of the prompt that were computed.

    .venv/bin/python -m scripts.offload.restarted --tokens 1980 --pairs 5
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

from jaxgen.core.config import OffloadPolicy
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.llm import LLM

VOCABULARY = range(10, 1000)


def answer(model: str | None, tokens: int, directory: str | None, policy: OffloadPolicy) -> dict[str, Any]:
    """Return the seconds to the first token of the prompt in this process, and its tokens that were computed."""
    rng, once = random.Random(1), SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    prompt = rng.choices(VOCABULARY, k=tokens)
    with LLM(model, max_model_len=tokens + 64, kv_tier_dir=directory, kv_offload_policy=policy) as llm:
        llm.generate([prompt[::-1][:32]], once)
        before = llm.engine.stats().prompt_tokens
        started = time.perf_counter()
        llm.generate([prompt], once)
        seconds = time.perf_counter() - started
        return {"seconds": round(seconds, 4), "computed": llm.engine.stats().prompt_tokens - before}


def main() -> None:
    """Print a line of JSON for each pair."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", help="directory (default: the embedded model)")
    parser.add_argument("--tokens", type=int, default=1980)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--policy", choices=("plan", "transfer"), default="plan", help="as --kv-offload-policy")
    parser.add_argument("--answer", metavar="DIR", help="be one of the processes; empty: without a tier")
    args = parser.parse_args()
    if args.answer is not None:
        print(json.dumps(answer(args.model, args.tokens, args.answer or None, args.policy)))
        return
    with tempfile.TemporaryDirectory() as directory:
        _in_a_process(directory)
        for _ in range(args.pairs):
            print(json.dumps({"without": _in_a_process(""), "with": _in_a_process(directory)}), flush=True)


def _in_a_process(directory: str) -> Any:
    command = [sys.executable, "-m", "scripts.offload.restarted", *sys.argv[1:], "--answer", directory]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
