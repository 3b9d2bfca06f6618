"""Time how long a context that left the device takes to come back: copied, computed again, or both as planned.

One context of random tokens is computed, pushed out by another, and asked for again under each policy in turn, over
simulated links (every byte is copied, then held back until the link would have carried it; the planner sees only what
copies took). With ``--inputs`` layer inputs are kept too: also all projected from these, and as planned without them.
Prints a line of JSON for each bandwidth: medians of seconds from the request to its first token, and what was predicted
of them.

    .venv/bin/python -m scripts.measure.restore_time --bandwidths 10,20,40,80,0 --tokens 4096 --repeats 5 (0: real)
"""

import argparse
import json

from scripts.measure.shapes import SHAPES
from scripts.measure.step_time import kernels_for
from scripts.offload.restore import Measurement, build, measure


def main() -> None:
    """Print a line of JSON for each bandwidth."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="88m")
    parser.add_argument("--bandwidths", default="10,20,40,80,0", help="MB/s of the simulated links; 0: the real one")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--token-budget", type=int, default=64)
    parser.add_argument("--inputs", action="store_true", help="keep layer inputs too")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    model = SHAPES[args.shape]
    engine = build(model, kernels_for("chosen", model), args.tokens, args.token_budget, inputs=args.inputs)
    measurement = Measurement(engine, args.tokens)
    for bandwidth in (float(word) * 1e6 or None for word in args.bandwidths.split(",")):
        print(json.dumps(measure(measurement, bandwidth, args.repeats)), flush=True)


if __name__ == "__main__":
    main()
