"""Train, export and evaluate the embedded demonstration model.

Training continues from the checkpoint in --workdir until --minutes of training are spent in all; --out then gets the
exported model, and --evaluate measures it. Without --workdir the model that lies in --out is evaluated as it is.
"""

import argparse
from pathlib import Path

import jax.numpy as jnp

from scripts.demo_model.evaluate import evaluate
from scripts.demo_model.export import export
from scripts.demo_model.model import DemoConfig
from scripts.demo_model.train import get_tokenizer, load_params, train


def main() -> None:
    """Parse the command line and do what it asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, help="folder of the checkpoint and the tokenizer, made if need be")
    parser.add_argument("--minutes", type=float, default=102.0, help="training time, all resumptions together")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of the products")
    parser.add_argument("--out", type=Path, help="folder of the exported model")
    parser.add_argument("--evaluate", type=Path, metavar="JSON", help="measure the model in --out, write figures here")
    parser.add_argument("--cases", type=int, default=150, help="recall cases for each cell of the table")
    options = parser.parse_args()
    if options.workdir is None and (options.out is None or options.evaluate is None):
        parser.error("give --workdir to train, or --out and --evaluate to measure an exported model")
    if options.evaluate is not None and options.out is None:
        parser.error("--evaluate measures the exported model: say with --out where it goes or lies")
    config = DemoConfig()
    if options.workdir is not None:
        train(options.workdir, config, options.minutes, jnp.dtype(options.dtype))
    if options.workdir is not None and options.out is not None:
        params, _ = load_params(options.workdir, config)
        export(params, config, get_tokenizer(options.workdir), options.out)
    if options.evaluate is not None:
        evaluate(options.out, options.evaluate, options.cases)
