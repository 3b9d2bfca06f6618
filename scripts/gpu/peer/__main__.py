"""Compare jaxgen and vLLM, or another OpenAI-compatible server, on one GPU: the same model, client and load.

    python -m scripts.gpu.peer --plan                                       the seconds that a run takes at most
    python -m scripts.gpu.peer --dry-run                                    tiny, on a CPU, with a fake server as vLLM
    python -m scripts.gpu.peer --peer-python /opt/vllm/bin/python           jaxgen, then vLLM of that Python
    python -m scripts.gpu.peer --peer-command 'serve {model} --port {port} --name {name}' --peer-name other
    python -m scripts.gpu.peer --page-only                                  docs/results/peers-gpu.md again

Results are written after every load. A second call with the same --results measures what is missing.
"""

import sys

from scripts.gpu.peer.cli import main

if __name__ == "__main__":
    sys.exit(main())
