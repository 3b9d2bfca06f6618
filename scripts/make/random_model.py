"""Write a Hugging Face directory of random weights in a shape that the benchmarks use.

.venv/bin/python -m scripts.make.random_model --dtype bfloat16 /tmp/88m
.venv/bin/python -m scripts.make.random_model --shape gemma-3-270m /tmp/270m
.venv/bin/jaxgen serve --model /tmp/88m
"""

import argparse
from pathlib import Path

from jaxgen.core.model_config import DTYPES
from jaxgen.weights.packaged.tiny import make_checkpoint
from scripts.loads.shapes import CONFIGS

LEFT_OUT = ("bos_token_id", "eos_token_id", "torch_dtype")
"""Of the fields of a shape: the ids of the first and the last token are those of the tokenizer that is made."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where; files of the same names are overwritten")
    parser.add_argument("--shape", choices=CONFIGS, default="88m")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--max-position", type=int, default=4096)
    args = parser.parse_args()
    config = {name: value for name, value in CONFIGS[args.shape].items() if name not in LEFT_OUT}
    config |= {"dtype": args.dtype, "max_position_embeddings": args.max_position}
    make_checkpoint(config, args.directory)


if __name__ == "__main__":
    main()
