"""Write a Hugging Face directory of random weights in a shape that the benchmarks use.

.venv/bin/python -m scripts.make.random_model --dtype bfloat16 /tmp/88m
.venv/bin/python -m scripts.make.random_model --shape 1b /tmp/1b
.venv/bin/jaxgen serve --model /tmp/88m
"""

import argparse
from pathlib import Path

from jaxgen.core.config import DTYPES
from jaxgen.weights.tiny import make_tiny_checkpoint
from scripts.measure.step_time import SHAPES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where; files of the same names are overwritten")
    parser.add_argument("--shape", choices=SHAPES, default="88m")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--max-position", type=int, default=4096)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    make_tiny_checkpoint(
        args.directory,
        dtype=args.dtype,
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=args.max_position,
        tie_word_embeddings=shape.head.tied,
    )


if __name__ == "__main__":
    main()
