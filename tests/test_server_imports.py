"""Host files and the server work where JAX cannot be imported."""

import subprocess
import sys
from pathlib import Path

from tests import tiny_tokenizers

PROGRAM = """
import importlib, sys

class NoJax:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "flax", "orbax", "pallas_kernels"):
            raise ImportError(f"{name} is out of reach here")

sys.meta_path.insert(0, NoJax())
for module in sys.argv[2:]:
    importlib.import_module(module)
from jaxgen.tokenizer import Tokenizer
assert Tokenizer.from_directory(sys.argv[1]).encode("text")
import server.app
try:
    import jax
except ImportError:
    sys.exit(0)
sys.exit("jax was imported after all")
"""

HOST_MODULES = (
    *("request", "sampling_params", "config", "tokenizer", "detokenizer", "stop_strings"),
    *("sequence", "block_pool", "prefix_cache", "scheduler", "step_plan"),
    *("average", "host_dtype", "kernel_proof", "nvidia", "verdict"),
    *("pooling", "memory_plan", "cache_dirs", "device_info", "token_budget", "tokenizer_cache", "tuning_store"),
    *(f"offload.{name}" for name in ("host_store", "planner", "rates", "staging", "streaming", "tier")),
)
COMPOSITION_ROOTS = ("cli", "serve", "tune", "verify")


def test_server_and_host_files_do_without_jax(tmp_path: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    root = Path(__file__).parent.parent
    served = sorted(path.stem for path in (root / "server").glob("*.py"))
    modules = [f"jaxgen.{name}" for name in HOST_MODULES]
    modules += [f"server.{name}" for name in served if name not in COMPOSITION_ROOTS]
    assert "server.completions" in modules
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), *modules],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
