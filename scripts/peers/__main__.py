"""Compare jaxgen with OpenVINO GenAI, vLLM, llama.cpp and transformers: the same weights, load and machine.

    .venv/bin/python -m scripts.peers                                88M in bfloat16 and float32: peers.md
    .venv/bin/python -m scripts.peers --shape 1b                     1B in bfloat16, 8 and 4 bits: peers-1b.md
    .venv/bin/python -m scripts.peers --shape gemma-3-270m           262,144 tokens, in 8 bits, and llama.cpp
    .venv/bin/python -m scripts.peers --shape qwen3.5-0.8b           one GGUF file for both, and llama.cpp
    .venv/bin/python -m scripts.peers --clients '' --long-clients 0 --rates 1,2,3,4      open loops alone
    .venv/bin/python -m scripts.peers --load agents                  conversations: peers-agents-88m.md
    .venv/bin/python -m scripts.peers --page-only                    the page again

Results, and the page of each, are in docs/results.

Each peer has an environment of its own under --work-dir, made on the first run (Python 3.11, packages from PyPI).
"""

import sys

from scripts.peers.cli import main

if __name__ == "__main__":
    sys.exit(main())
