"""Host files and the server work where JAX cannot be imported."""

import subprocess
import sys
from pathlib import Path

from tests.support import tiny_tokenizers
from tests.support.paths import ROOT

PROGRAM = """
import importlib, sys

class NoJax:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "flax", "orbax", "pallas_kernels"):
            raise ImportError(f"{name} is out of reach here")

sys.meta_path.insert(0, NoJax())
for module in sys.argv[2:]:
    importlib.import_module(module)
from jaxgen.text.tokenizer import Tokenizer
assert Tokenizer.from_directory(sys.argv[1]).encode("text")
import jaxgen.server.app
try:
    import jax
except ImportError:
    sys.exit(0)
sys.exit("jax was imported after all")
"""

HOST_ROOMS = (
    *("core", "files", "hardware", "text", "cache", "scheduling", "sizing", "server"),
    *("kernels.proving", "layerwise.planning", "offload.planning", "offload.tiers"),
)
COMPOSITION_ROOTS = ("cli", "commands.serve", "commands.tune", "commands.verify")


def modules_of(room: str) -> list[str]:
    """Names of the modules of a room of jaxgen, without those that start an engine."""
    folder = ROOT.joinpath("jaxgen", *room.split("."))
    paths = sorted(path.relative_to(folder).with_suffix("") for path in folder.glob("**/*.py"))
    names = [".".join(path.parts) for path in paths if path.name != "__init__"]
    return [f"jaxgen.{room}.{name}" for name in names if name not in COMPOSITION_ROOTS]


def test_server_and_host_files_do_without_jax(tmp_path: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    modules = [name for room in HOST_ROOMS for name in modules_of(room)]
    modules.append("jaxgen.client")
    assert {"jaxgen.server.api.completions", "jaxgen.scheduling.scheduler", "jaxgen.offload.tiers.host_store"} <= set(
        modules
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
